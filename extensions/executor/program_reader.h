// Reads a Program from the description that runtime/native.py writes (lower_plan), and checks what could corrupt
// memory. A template's description has Registers for numbers that depend on sizes; their places are recorded.
//
// A Source reads one form of description, tuples of Python or JSON. `Value` refers to a part of it, `Kept` holds a
// part after the reading.
//   item(value, index), items(value)        of a tuple
//   integer, truth, text, number, dtype, device, is_none, is_tuple   of a value
//   tensor(value), kernel(value), cuda_function(value), native_launch(value), size_function(value)
//   register_of(value)                      its index, -1 if the value is not a Register
//   has_registers(value), keep(value)
//   constant_of(value, declared)            an argument of an ATen call, converted by its schema
//   check(holds, message)                   throws what the Source's user expects
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program.h"
#include "size_code.h"

namespace jitmagic {

// The places to fill in when sizes are known.
template <class Kept>
struct SizedFields {
  struct Argument {
    int step, number;  // of an ATen call
    Kept structure;
  };
  struct Vector {
    int constant;
    Kept structure;  // of an int64 tensor
  };
  std::vector<SizedField> fields;
  std::vector<Argument> arguments;
  std::vector<Vector> vectors;
};

template <class Source>
class ProgramReader {
  using Value = typename Source::Value;
  using Fields = SizedFields<typename Source::Kept>;

 public:
  // `sizing` is given if the description may contain Registers.
  explicit ProgramReader(const Source& from, Fields* sizing = nullptr) : from_(from), sizing_(sizing) {}

  // (inputs, slots, pool_bytes, device, heavy, steps, outputs, titles)
  std::unique_ptr<Program> read(Value tuple, Value constants) {
    auto program = std::make_unique<Program>();
    program->inputs = int(from_.integer(from_.item(tuple, 0)));
    slots_ = program->slots = int(from_.integer(from_.item(tuple, 1)));
    program->pool_bytes = size_t(number(from_.item(tuple, 2), SizedField::Pool));
    program->device = from_.device(from_.item(tuple, 3));
    program->heavy = from_.truth(from_.item(tuple, 4));
    int launches = 0;
    for (Value described : from_.items(from_.item(tuple, 5))) {
      step_ = int(program->steps.size());
      program->steps.push_back(step(described));
      Step& made = program->steps.back();
      if (made.kind == Kind::Launch || made.kind == Kind::LaunchCuda) made.number = ++launches;
    }
    program->outputs = slots(from_.item(tuple, 6), kNone);
    read_titles(from_.item(tuple, 7), launches, *program);
    read_constants(constants, *program);
    from_.check(
        program->inputs >= 0 && program->inputs + int(program->constants.size()) <= program->slots,
        "malformed program: slots");
    return program;
  }

 private:
  static constexpr int kNone = -1;  // the lowest number where None may replace a slot

  int slot(Value value, int lowest = 0) { return index(value, slots_, lowest); }

  int index(Value value, int limit, int lowest = 0) {
    const int64_t number = from_.integer(value);
    from_.check(number >= lowest && number < limit, "malformed program: slot");
    return int(number);
  }

  std::vector<int> slots(Value tuple, int lowest = 0) {
    std::vector<int> made;
    for (Value value : from_.items(tuple)) made.push_back(slot(value, lowest));
    return made;
  }

  int64_t number(Value value, SizedField::Field field, int dim = 0) {
    const int index = sizing_ ? from_.register_of(value) : -1;
    if (index < 0) return from_.integer(value);
    sizing_->fields.push_back({field, step_, result_, dim, index});
    return 0;
  }

  // (sizes, strides)
  TensorLayout sizes(Value tuple) {
    TensorLayout layout;
    int dim = 0;
    for (Value n : from_.items(from_.item(tuple, 0))) layout.sizes.push_back(number(n, SizedField::Size, dim++));
    dim = 0;
    for (Value n : from_.items(from_.item(tuple, 1))) layout.strides.push_back(number(n, SizedField::Stride, dim++));
    from_.check(layout.sizes.size() == layout.strides.size(), "malformed program: sizes and strides");
    return layout;
  }

  // (sizes, strides, dtype, device)
  TensorLayout layout(Value tuple) {
    TensorLayout made = sizes(tuple);
    made.dtype = from_.dtype(from_.item(tuple, 2));
    made.device = from_.device(from_.item(tuple, 3));
    set_nbytes(made);
    return made;
  }

  CallArgument argument(Value entry, const c10::Argument& declared, int number) {
    const std::string_view tag = from_.text(from_.item(entry, 0));
    CallArgument made;
    if (tag == "slot" || tag == "number") {
      made.from = tag == "slot" ? CallArgument::From::Slot : CallArgument::From::Number;
      made.slots = {slot(from_.item(entry, 1))};
      made.is_tensor = declared.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
    } else if (tag == "list") {
      const auto elements = declared.type()->cast<c10::ListType>();
      const bool optional = elements && elements->getElementType()->kind() == c10::TypeKind::OptionalType;
      made.from = optional ? CallArgument::From::OptionalList : CallArgument::From::List;
      made.slots = slots(from_.item(entry, 1), optional ? kNone : 0);
    } else if (tag == "default") {
      from_.check(declared.default_value().has_value(), "malformed program: an argument has no default");
      made.constant = *declared.default_value();
    } else if (sizing_ && from_.has_registers(from_.item(entry, 1))) {
      sizing_->arguments.push_back({step_, number, from_.keep(from_.item(entry, 1))});
    } else {
      made.constant = from_.constant_of(from_.item(entry, 1), declared);
    }
    return made;
  }

  // (sizes, strides, dtype, device, required) | None
  Expected expected(Value entry) {
    Expected made;
    if (from_.is_none(entry)) return made;
    made.known = true;
    made.layout = layout(entry);
    made.required = from_.truth(from_.item(entry, 4));
    return made;
  }

  // ("call", name, overload, arguments, results, out, layouts, foreign, kernel, file, line)
  std::shared_ptr<Call> call(Value tuple) {
    const std::string name(from_.text(from_.item(tuple, 1))), overload(from_.text(from_.item(tuple, 2)));
    Call made{c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()), {}, {}, false, {}};
    const auto& declared = made.op.schema().arguments();
    const auto given = from_.items(from_.item(tuple, 3));
    from_.check(given.size() == declared.size(), "malformed program: arguments of an ATen call");
    for (size_t i = 0; i < declared.size(); ++i) made.arguments.push_back(argument(given[i], declared[i], int(i)));
    made.results = slots(from_.item(tuple, 4), kNone);
    made.out = from_.truth(from_.item(tuple, 5));
    for (Value described : from_.items(from_.item(tuple, 6))) {
      result_ = int(made.expected.size());
      made.expected.push_back(expected(described));
    }
    result_ = -1;
    made.foreign = from_.truth(from_.item(tuple, 7));
    if (!from_.is_none(from_.item(tuple, 8))) {
      made.kernel = from_.native_launch(from_.item(tuple, 8));
      if (!sizing_) made.kernel = made.kernel->specialised(made);
    }
    made.file = from_.text(from_.item(tuple, 9));
    made.line = int(from_.integer(from_.item(tuple, 10)));
    return std::make_shared<Call>(std::move(made));
  }

  // ("launch_cuda", function, grid, threads, shared bytes, scratch, device, arguments, by_value)
  void read_cuda_launch(Value tuple, Step& step) {
    step.kind = Kind::LaunchCuda;
    step.cuda.function = from_.cuda_function(from_.item(tuple, 1));
    for (int i = 0; i < 3; ++i) {
      step.cuda.grid[i] = unsigned(number(from_.item(from_.item(tuple, 2), i), SizedField::Grid, i));
    }
    step.cuda.block = unsigned(from_.integer(from_.item(tuple, 3)));
    step.cuda.shared = unsigned(from_.integer(from_.item(tuple, 4)));
    step.cuda.scratch = int(from_.integer(from_.item(tuple, 5)));
    const auto device = c10::DeviceIndex(from_.integer(from_.item(tuple, 6)));
    step.layout.device = c10::Device(c10::DeviceType::CUDA, device);
    step.args = slots(from_.item(tuple, 7));
    for (Value position : from_.items(from_.item(tuple, 8))) {
      step.by_value.push_back(index(position, int(step.args.size())));
    }
  }

  Step step(Value tuple) {
    const std::string_view tag = from_.text(from_.item(tuple, 0));
    Step step{};
    if (tag == "alloc") {
      step.kind = Kind::Alloc;
      step.slot = slot(from_.item(tuple, 1));
      step.layout = layout(from_.item(tuple, 2));
    } else if (tag == "over") {
      step.kind = Kind::Reuse;
      step.slot = slot(from_.item(tuple, 1));
      step.base = slot(from_.item(tuple, 2));
      step.layout = layout(from_.item(tuple, 3));
    } else if (tag == "pool") {
      step.kind = Kind::Pool;
      step.slot = slot(from_.item(tuple, 1));
      step.layout = layout(from_.item(tuple, 2));
      step.offset = number(from_.item(tuple, 3), SizedField::Offset);
      step.as_tensor = from_.truth(from_.item(tuple, 4));
    } else if (tag == "launch") {
      step.kind = Kind::Launch;
      step.kernel = from_.kernel(from_.item(tuple, 1));
      step.args = slots(from_.item(tuple, 2));
    } else if (tag == "launch_cuda") {
      read_cuda_launch(tuple, step);
    } else if (tag == "call") {
      step.kind = Kind::Call;
      step.call = call(tuple);
    } else if (tag == "view") {
      step.kind = Kind::View;
      step.slot = slot(from_.item(tuple, 1));
      step.base = slot(from_.item(tuple, 2));
      step.layout = sizes(from_.item(tuple, 3));
      step.offset = number(from_.item(tuple, 4), SizedField::Offset);
    } else if (tag == "address") {
      step.kind = Kind::Address;
      step.slot = slot(from_.item(tuple, 1));
      step.base = slot(from_.item(tuple, 2));
      step.offset = number(from_.item(tuple, 3), SizedField::Offset);
    } else {
      from_.check(tag == "free", "malformed program: unknown step");
      step.kind = Kind::Free;
      step.slot = slot(from_.item(tuple, 1));
    }
    return step;
  }

  void read_titles(Value described, int launches, Program& program) {
    std::vector<std::string> titles;
    for (Value title : from_.items(described)) titles.emplace_back(from_.text(title));
    from_.check(titles.empty() || int(titles.size()) == launches + 1, "malformed program: titles of launches");
    program.titles = std::make_shared<const std::vector<std::string>>(std::move(titles));
  }

  void read_constants(Value constants, Program& program) {
    for (Value constant : from_.items(constants)) {
      if (sizing_ && from_.is_tuple(constant)) {
        sizing_->vectors.push_back({int(program.constants.size()), from_.keep(constant)});
        program.constants.emplace_back();
      } else {
        program.constants.push_back(from_.tensor(constant));
      }
    }
  }

  const Source& from_;
  Fields* sizing_;
  int slots_ = 0;
  int step_ = -1;    // the position in the program of the numbers being read
  int result_ = -1;  // of an ATen call
};

}  // namespace jitmagic
