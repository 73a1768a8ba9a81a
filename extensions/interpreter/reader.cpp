// Reads programs from text, and checks all that running them relies on.
//
//     kernel NAME                     lanes N · arguments TYPE… (a written one ends in +) · sizes N
//     registers CLASS…                s: a scalar; v: a view; 1, 2, 4, 8: a block of elements of so many bytes
//     OPERATION.TYPE OPERANDS…        one instruction a line; program.h has the operands
//     loop FLAGS COST (AXIS EXTENT)…  up to its `end`; flags are of "p" (parallel), "b" (blocks), or "s"
//     end                             the kernel's
#include <charconv>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "program.h"

namespace jitmagic::blocks {
namespace {

constexpr int kMostLanes = 1 << 12, kMostRegisters = 1 << 16, kMostAxes = 16, kLine = 64;
constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kMostInstructions = 1 << 20;

[[noreturn]] void refuse(const char* why) { throw Malformed(why); }
void require(bool holds, const char* why) {
  if (!holds) [[unlikely]] refuse(why);
}

// The words of one line.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool done() {
    skip();
    return rest_.empty();
  }
  std::string_view word() {
    skip();
    const size_t end = rest_.find(' ');
    std::string_view made = rest_.substr(0, end);
    require(!made.empty(), "an operand is missing");
    rest_.remove_prefix(made.size());
    return made;
  }
  int64_t number(int base = 10) {
    const std::string_view text = word();
    int64_t made = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), made, base);
    require(error == std::errc() && end == text.data() + text.size(), "not a number");
    return made;
  }
  uint64_t bits() {
    const std::string_view text = word();
    uint64_t made = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), made, 16);
    require(error == std::errc() && end == text.data() + text.size(), "not a constant");
    return made;
  }
  int small(int64_t limit, const char* why) {
    const int64_t made = number();
    require(made >= 0 && made < limit, why);
    return int(made);
  }

 private:
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

Type type_named(std::string_view name) {
  for (int i = 0; i < kTypes; ++i) {
    if (name == kTypeNames[i]) return Type(i);
  }
  refuse("an unknown type");
}

std::string key_of(std::string_view name, Type type) { return std::string(name) + '.' + kTypeNames[int(type)]; }

// The rows of one instruction set by their names in the text.
struct Index {
  std::unordered_map<std::string, const Pointwise*> points;
  std::unordered_map<std::string, const Reduction*> reductions;
  const Access* accesses[kTypes] = {};

  explicit Index(const Operations& from) {
    for (const auto& rows : from.pointwise) {
      for (size_t i = 0; i < rows.count; ++i) points[key_of(rows.rows[i].name, rows.rows[i].type)] = &rows.rows[i];
    }
    for (size_t i = 0; i < from.reductions.count; ++i) {
      const Reduction& row = from.reductions.rows[i];
      reductions[key_of(row.name, row.type)] = &row;
    }
    for (size_t i = 0; i < from.accesses.count; ++i) accesses[int(from.accesses.rows[i].type)] = &from.accesses.rows[i];
  }
};

const Index& index_of(const Operations& operations) {
  static std::mutex lock;
  static std::unordered_map<const Operations*, std::unique_ptr<Index>> made;
  const std::lock_guard<std::mutex> guard(lock);
  auto& index = made[&operations];
  if (!index) index = std::make_unique<Index>(operations);
  return *index;
}

constexpr int kScalar = 0, kView = -1;  // classes of registers; others: bytes of an element
constexpr int8_t kUndefined = -1;
constexpr Type kNoType = Type(kTypes);

// Reads one kernel: its lines after the first.
class Reader {
 public:
  Reader(const Operations& operations, Program& program) : index_(index_of(operations)), program_(program) {
    program.operations = &operations;
  }

  // Returns false at the kernel's end.
  bool read(std::string_view text) {
    Line line(text);
    const std::string_view first = line.word();
    if (first == "lanes") read_lanes(line);
    else if (first == "arguments") read_arguments(line);
    else if (first == "sizes") program_.sizes = line.small(1 << 16, "too many sizes");
    else if (first == "registers") read_registers(line);
    else if (first == "end") {
      require(line.done(), "words after the end of a line");
      if (open_.empty()) return false;
      close();
    } else {
      require(program_.code.size() < kMostInstructions, "too many instructions");
      instruction(first, line);
    }
    require(line.done(), "words after the end of a line");
    return true;
  }

 private:
  struct Open {
    size_t loop;
    std::vector<int8_t> types;
    bool blocked;
  };

  // -- the head ---------------------------------------------------------------------------------------------------------

  void read_lanes(Line& line) {
    require(!program_.lanes && classes_.empty(), "lanes are defined once, before the registers");
    program_.lanes = line.small(kMostLanes + 1, "too many lanes");
    require(program_.lanes && program_.lanes % kLine == 0, "lanes fill whole cache lines");
  }

  void read_arguments(Line& line) {
    require(arguments_.empty(), "arguments are defined once");
    while (!line.done()) {
      std::string_view name = line.word();
      const bool written = name.ends_with('+');
      if (written) name.remove_suffix(1);
      arguments_.push_back({type_named(name), written});
    }
    program_.arguments = int(arguments_.size());
  }

  void read_registers(Line& line) {
    require(program_.lanes && classes_.empty(), "registers are defined once, after the lanes");
    size_t bytes = 0;
    std::vector<size_t> scalars;
    while (!line.done()) {
      const std::string_view name = line.word();
      require(classes_.size() < kMostRegisters, "too many registers");
      size_t size = 0;
      if (name == "s") {
        classes_.push_back(kScalar);
        size = 8;
      } else if (name == "v") {
        classes_.push_back(kView);
      } else {
        require(name == "1" || name == "2" || name == "4" || name == "8", "an unknown class of registers");
        classes_.push_back(name[0] - '0');
        size = size_t(classes_.back()) * size_t(program_.lanes);
        bytes = (bytes + kLine - 1) / kLine * kLine;
      }
      program_.places.push_back(uint32_t(bytes));
      bytes += size;
      require(bytes <= kMostBytes, "too many registers");
    }
    program_.bytes = (bytes + kLine - 1) / kLine * kLine;
    types_.assign(classes_.size(), kUndefined);
  }

  // -- operands ---------------------------------------------------------------------------------------------------------

  int register_in(Line& line) { return line.small(int64_t(classes_.size()), "no such register"); }

  // A register that holds a value of the type. Blocks and scalars do not mix.
  int used(Line& line, Type type, bool block) {
    const int r = register_in(line);
    require(types_[size_t(r)] == int8_t(type), "a register of another type, or not defined");
    require((classes_[size_t(r)] != kScalar) == block, "a scalar in place of a block, or a block in place of a scalar");
    return r;
  }
  int whole(Line& line) { return used(line, Type::i64, false); }

  // Whether the register that comes first is a block.
  bool defines_block(int r) const { return classes_[size_t(r)] != kScalar; }

  void define(int r, Type type) {
    const int kind = classes_[size_t(r)];
    require(kind == kScalar || kind == bytes_of(type), "a block does not fit its register");
    types_[size_t(r)] = int8_t(type);
  }

  // As `define`, for what may be computed into the memory of an argument.
  void define_or_place(int r, Type type) {
    if (classes_[size_t(r)] != kView) return define(r, type);
    require(placed_ == r && placed_type_ == type, "a view that is not placed");
    placed_ = -1;
    types_[size_t(r)] = int8_t(type);
  }

  int argument(Line& line, Type type, bool written) {
    const int number = line.small(int64_t(arguments_.size()), "no such argument");
    const Argument& found = arguments_[size_t(number)];
    require(found.type == type, "an argument of another type");
    require(found.written || !written, "a store into an argument that is only read");
    return number;
  }

  // -- instructions -----------------------------------------------------------------------------------------------------

  void instruction(std::string_view word, Line& line) {
    Instruction made;
    if (word == "loop") return open(line);
    const size_t dot = word.find('.');
    if (dot == std::string_view::npos) untyped(word, line, made);
    else typed(word.substr(0, dot), word.substr(dot + 1), word, line, made);
    program_.code.push_back(std::move(made));
  }

  void untyped(std::string_view name, Line& line, Instruction& made) {
    const int out = register_in(line);
    made.operands[0] = out;
    if (name == "size") {
      made.kind = Kind::Size;
      made.operands[1] = line.small(program_.sizes, "no such size");
      require(!defines_block(out), "a size is a scalar");
    } else if (name == "sum") {
      made.kind = Kind::Sum;
      made.number = uint64_t(line.number());
      while (!line.done()) made.terms.push_back(whole(line));
      require(made.terms.size() % 2 == 0 && !defines_block(out), "a sum of products of scalars");
    } else if (name == "iota" || name == "quotients" || name == "remainders") {
      made.kind = name == "iota" ? Kind::Iota : name == "quotients" ? Kind::Quotients : Kind::Remainders;
      made.operands[1] = whole(line);
      made.operands[2] = whole(line);
      if (made.kind != Kind::Iota) made.operands[3] = whole(line);
      require(classes_[size_t(out)] == 8, "indexes are a block");
      made.is_block = true;
    } else {
      require(name == "check", "an unknown instruction");
      made.kind = Kind::Check;
      made.is_block = defines_block(out);
      made.operands[1] = used(line, Type::i64, made.is_block);
      made.operands[2] = whole(line);
      if (!line.done()) made.operands[3] = used(line, Type::b8, made.is_block);
    }
    define(out, Type::i64);
  }

  void typed(std::string_view name, std::string_view suffix, std::string_view whole_name, Line& line, Instruction& made) {
    if (name == "reduce" || name == "join") return accumulate(name == "reduce", suffix, line, made);
    if (name == "place") return place(type_named(suffix), line, made);
    if (name == "scratch") return scratch(type_named(suffix), line, made);
    if (whole_name == "product.f32") return product(line, made);
    if (name == "const") {
      made.operands[0] = register_in(line);
      made.number = line.bits();
      require(!defines_block(made.operands[0]), "a constant is a scalar");
      return define(made.operands[0], type_named(suffix));
    }
    if (const auto found = index_.points.find(std::string(whole_name)); found != index_.points.end()) {
      return point(*found->second, line, made);
    }
    access(name, type_named(suffix), line, made);
  }

  // One more argument, whose memory the call allocates.
  void scratch(Type type, Line& line, Instruction& made) {
    if (!program_.scratch) arguments_.push_back({kNoType, false});  // the array of sizes
    made.kind = Kind::Scratch;
    made.access = index_.accesses[int(type)];
    made.operands[0] = line.small(int64_t(arguments_.size()) + 1, "no such argument");
    require(open_.empty() && made.operands[0] == int(arguments_.size()), "scratch memory is allocated once, in order");
    made.operands[1] = whole(line);
    arguments_.push_back({type, true});
    ++program_.scratch;
  }

  void product(Line& line, Instruction& made) {
    require(open_.empty(), "a product inside of a loop");
    made.kind = Kind::Product;
    const auto wholes = [&](int count) {
      for (int i = 0; i < count; ++i) made.terms.push_back(whole(line));
    };
    wholes(3);
    for (const bool written : {false, false, true}) {
      made.terms.push_back(argument(line, Type::f32, written));
      wholes(written ? 2 : 3);
    }
    made.number = uint64_t(line.small(2, "not a flag"));
  }

  void point(const Pointwise& row, Line& line, Instruction& made) {
    made.kind = Kind::Point;
    made.point = &row;
    made.operands[0] = register_in(line);
    made.is_block = defines_block(made.operands[0]);
    for (int i = 0; i < row.arity; ++i) {
      made.operands[i + 1] = used(line, row.conditional && !i ? Type::b8 : row.type, made.is_block);
    }
    define_or_place(made.operands[0], row.result);
  }

  // The address of a block in an argument, into which the next operation writes.
  void place(Type type, Line& line, Instruction& made) {
    view(type, line, made, true);
    placed_ = made.operands[0], placed_type_ = type;
    types_[size_t(placed_)] = kUndefined;
  }

  void view(Type type, Line& line, Instruction& made, bool written) {
    made.kind = Kind::View;
    made.bytes = bytes_of(type);
    made.operands[0] = register_in(line);
    require(classes_[size_t(made.operands[0])] == kView, "a view needs a register of views");
    made.operands[1] = argument(line, type, written);
    made.first = !std::exchange(arguments_[size_t(made.operands[1])].viewed, true);
    made.operands[2] = whole(line);
    require(written || type != Type::b8, "bools are normalised when they are loaded");
    types_[size_t(made.operands[0])] = int8_t(type);
  }

  void access(std::string_view name, Type type, Line& line, Instruction& made) {
    made.access = index_.accesses[int(type)];
    int* operands = made.operands;
    if (name == "view") return view(type, line, made, false);
    if (name == "fill") {
      made.kind = Kind::Fill;
      made.is_block = true;
      operands[0] = register_in(line);
      operands[1] = used(line, type, false);
      require(defines_block(operands[0]), "a fill makes a block");
      return define(operands[0], type);
    }
    const bool loads = name == "load" || name == "loadif", gathers = name == "gather" || name == "gatherif";
    if (loads || gathers) {
      operands[0] = register_in(line);
      made.is_block = defines_block(operands[0]);
      operands[1] = argument(line, type, false);
      operands[2] = whole(line);
      operands[3] = gathers ? used(line, Type::i64, true) : whole(line);
      require(made.is_block || loads, "a gather makes a block");
      made.kind = loads ? Kind::Load : Kind::Gather;
      if (name.ends_with("if")) {
        made.kind = loads ? Kind::LoadIf : Kind::GatherIf;
        operands[4] = used(line, Type::b8, made.is_block);
        operands[5] = used(line, type, false);
      }
      return define(operands[0], type);
    }
    const bool scatters = name == "scatter" || name == "addat", adds = name == "addto" || name == "addat";
    require(scatters || adds || name == "store", "an unknown operation");
    require(!adds || made.access->add, "an unknown operation");
    operands[0] = argument(line, type, true);
    operands[1] = whole(line);
    operands[2] = scatters ? used(line, Type::i64, true) : whole(line);
    operands[3] = register_in(line);
    require(types_[size_t(operands[3])] == int8_t(type), "a stored value of another type, or not defined");
    made.is_block = defines_block(operands[3]);
    require(made.is_block || !scatters, "a scatter stores a block");
    made.kind = scatters ? adds ? Kind::AddAt : Kind::Scatter : adds ? Kind::Add : Kind::Store;
  }

  void accumulate(bool reduces, std::string_view name, Line& line, Instruction& made) {
    const auto found = index_.reductions.find(std::string(name));
    require(found != index_.reductions.end(), "an unknown reduction");
    const Reduction& row = *found->second;
    made.kind = reduces ? Kind::Reduce : Kind::Join;
    made.reduction = &row;
    const int total = made.operands[0] = register_in(line);
    made.is_block = reduces || defines_block(total);
    require(types_[size_t(total)] == int8_t(row.total) && classes_[size_t(total)] != kView, "a total of another type");
    require(!reduces || !defines_block(total), "a block is reduced to a scalar");
    if (row.has_extra) {
      made.operands[1] = used(line, row.extra, defines_block(total));
      require(classes_[size_t(made.operands[1])] != kView, "a total of another type");
    }
    made.operands[2] = used(line, row.type, made.is_block);
    if (row.has_extra && row.extra == Type::i64) {
      made.operands[3] = whole(line);
      if (reduces) made.operands[4] = whole(line);
    }
  }

  // -- loops ------------------------------------------------------------------------------------------------------------

  void open(Line& line) {
    Instruction made;
    made.kind = Kind::Loop;
    const std::string_view flags = line.word();
    made.parallel = flags.find('p') != std::string_view::npos;
    made.blocked = flags.find('b') != std::string_view::npos;
    require(flags.find_first_not_of("pbs") == std::string_view::npos, "unknown flags of a loop");
    const bool inside = !open_.empty() && open_.back().blocked;
    require(!(made.blocked && inside), "blocks inside of blocks");
    made.number = uint64_t(line.small(int64_t(1) << 31, "the cost of a loop"));
    std::vector<int> axes;
    while (!line.done()) {
      axes.push_back(register_in(line));
      require(!defines_block(axes.back()), "an axis is a scalar");
      made.terms.push_back(axes.back());
      made.terms.push_back(whole(line));
    }
    require(!axes.empty() && axes.size() <= kMostAxes, "a loop has axes");
    open_.push_back({program_.code.size(), types_, made.blocked || inside});
    for (int axis : axes) types_[size_t(axis)] = int8_t(Type::i64);
    program_.code.push_back(std::move(made));
  }

  void close() {
    const Open opened = std::move(open_.back());
    open_.pop_back();
    Instruction& loop = program_.code[opened.loop];
    loop.end = int(program_.code.size());
    for (int at = int(opened.loop) + 1; at < loop.end; ++at) {
      const Instruction& inside = program_.code[size_t(at)];
      const bool accumulates = inside.kind == Kind::Reduce || inside.kind == Kind::Join;
      if (accumulates && opened.types[size_t(inside.operands[0])] == int8_t(inside.reduction->total)) {
        loop.totals.push_back(at);
      }
    }
    types_ = opened.types;
    placed_ = -1;
  }

  struct Argument {
    Type type;
    bool written;
    bool viewed = false;
  };
  const Index& index_;
  Program& program_;
  std::vector<Argument> arguments_;
  std::vector<int> classes_;
  std::vector<int8_t> types_;  // of the values that registers hold; kUndefined
  std::vector<Open> open_;
  int placed_ = -1;
  Type placed_type_ = Type::f32;
};

}  // namespace

std::vector<Named> read_programs(std::string_view text, const Operations& operations) {
  std::vector<Named> made;
  std::unique_ptr<Reader> reader;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    require(end != std::string_view::npos, "the text is cut off");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.empty() || line.front() == '#') continue;
    if (reader) {
      if (!reader->read(line)) reader.reset();
      continue;
    }
    Line head(line);
    require(head.word() == "kernel", "not a kernel");
    made.push_back({std::string(head.word()), std::make_unique<Program>()});
    require(head.done(), "words after the end of a line");
    reader = std::make_unique<Reader>(operations, *made.back().program);
  }
  require(!reader, "the text is cut off");
  return made;
}

}  // namespace jitmagic::blocks
