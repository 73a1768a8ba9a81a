// Runs the steps of a Program (jitmagic/codegen/plan.py). Tests compare it with the reference implementation,
// runtime/plan_interpreter.py.
//
// The hot path allocates results, fills a pointer array and calls kernels. It runs below autograd.

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DeviceGuard.h>

#include "execute.h"
#include "profiled_block.h"

namespace jitmagic {
namespace {

// Returns the result in the plan's layout, copied if ATen chose other strides than the meta kernel.
at::Tensor as_expected(at::Tensor made, const Expected& expected) {
  const TensorLayout& layout = expected.layout;
  if (made.defined() && made.scalar_type() == layout.dtype && made.sizes() == at::IntArrayRef(layout.sizes)) {
    return laid_out(made, layout.sizes, layout.strides);
  }
  TORCH_CHECK(!expected.required, "jitmagic: an ATen call returned another shape or dtype than expected");
  return made;
}

// Checks that results are new memory as the schema says: the plan overwrites an argument's memory after its last
// read. Only custom operators are checked; ATen's schemas are trusted.
void check_new(const std::vector<at::Tensor>& made, const std::vector<const void*>& taken) {
  std::vector<const void*> seen(taken);
  for (const at::Tensor& tensor : made) {
    if (!tensor.defined() || !tensor.numel()) continue;
    const void* memory = tensor.storage().unsafeGetStorageImpl();
    TORCH_CHECK(std::find(seen.begin(), seen.end(), memory) == seen.end(),
                "jitmagic: an operator returned memory that, by its schema, it does not share");
    seen.push_back(memory);
  }
}

std::vector<const void*> memory_given(const Call& call, const Frame& frame) {
  std::vector<const void*> taken;
  for (const CallArgument& argument : call.arguments) {
    for (int slot : argument.slots) {
      if (slot >= 0) taken.push_back(frame.slots[slot].seen->storage().unsafeGetStorageImpl());
    }
  }
  return taken;
}

c10::IValue number_in(const at::Tensor& held, bool is_tensor) {
  const double number = held.item().toDouble();
  if (!is_tensor) return number;
  at::Tensor made = at::scalar_tensor(number, at::dtype(at::kDouble));
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

bool launched_natively(const Call& call, const Frame& frame) {
  c10::SmallVector<const at::Tensor*, 16> given;
  for (const CallArgument& argument : call.arguments) {
    given.push_back(argument.slots.empty() ? nullptr : frame.slots[argument.slots[0]].seen);
  }
  std::optional<ProfiledBlock> block;
  if (frame.titles) [[unlikely]] block.emplace(call.op.operator_name().name, at::RecordScope::FUNCTION);
  return call.kernel->launch(call, given);
}

void run_call(const Call& call, Frame& frame) {
  if (call.kernel && launched_natively(call, frame)) return;
  torch::jit::Stack stack;
  stack.reserve(call.arguments.size());
  for (const CallArgument& argument : call.arguments) {
    switch (argument.from) {
      case CallArgument::From::Constant:
        stack.push_back(argument.constant);
        break;
      case CallArgument::From::Slot:
        stack.emplace_back(*frame.slots[argument.slots[0]].seen);
        break;
      case CallArgument::From::Number:
        stack.push_back(number_in(*frame.slots[argument.slots[0]].seen, argument.is_tensor));
        break;
      case CallArgument::From::List: {
        c10::List<at::Tensor> list;
        for (int slot : argument.slots) list.push_back(*frame.slots[slot].seen);
        stack.emplace_back(std::move(list));
        break;
      }
      case CallArgument::From::OptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int slot : argument.slots) {
          list.push_back(slot < 0 ? std::nullopt : std::optional<at::Tensor>(*frame.slots[slot].seen));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  const auto taken = call.foreign ? memory_given(call, frame) : std::vector<const void*>();
  {
    std::optional<WarningCollector> listener;
    if (call.line) listener.emplace(frame.warned, call);
    call.op.callBoxed(stack);  // ~1.5 us for an addmm: small ones are better generated kernels
  }
  if (call.out) return;  // written into a slot that the plan has allocated
  std::vector<at::Tensor> made;
  for (c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(tensor);
    } else {
      made.push_back(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
    }
  }
  TORCH_CHECK(made.size() >= call.results.size(), "jitmagic: an ATen call returned too few tensors");
  if (call.foreign) check_new(made, taken);
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i] < 0) continue;
    const bool known = i < call.expected.size() && call.expected[i].known;
    frame.slots[call.results[i]].hold(
        known ? as_expected(std::move(made[i]), call.expected[i]) : std::move(made[i]));
  }
}

// Returns the current stream, read once per run for the program's device: ATen calls restore it.
void* stream_of(c10::Device device, Frame& frame) {
  if (device.index() != frame.device) return current_cuda_stream(device.index());
  if (!frame.stream_is_known) {
    frame.stream = current_cuda_stream(device.index());
    frame.stream_is_known = true;
  }
  return frame.stream;
}

void run_launch(const Step& step, Frame& frame) {
  c10::SmallVector<void*, 24> given(step.args.size() + 1);  // on the stack for most kernels
  given[0] = step.kernel.context;
  void** const pointers = given.data() + 1;
  for (size_t i = 0; i < step.args.size(); ++i) pointers[i] = frame.slots[step.args[i]].pointer;
  if (step.kind == Kind::LaunchCuda) {
    c10::SmallVector<void*, 24> arguments;
    for (size_t i = 0; i < step.args.size(); ++i) arguments.push_back(&pointers[i]);
    for (int i : step.by_value) arguments[size_t(i)] = pointers[i];
    launch_cuda(step.cuda, arguments, step.layout.device.index(), stream_of(step.layout.device, frame));
    return;
  }
  // Kernels continue after a bad index and report it at the end, which keeps branches out of their loops. Eager then
  // names the index.
  TORCH_CHECK_INDEX(step.kernel.function(pointers) == 0, "index out of range in a compiled kernel");
}

// Not inlined: its guards and strings would take registers from the unprofiled loop.
[[gnu::noinline]] void run_profiled_launch(const Step& step, Frame& frame) {
  const ProfiledBlock block((*frame.titles)[step.number], at::RecordScope::FUNCTION);
  run_launch(step, frame);
}

void run_view(const Step& step, Frame& frame) {
  const at::Tensor& base = *frame.slots[step.base].seen;
  frame.slots[step.slot].hold(
      tensor_over(base.storage(), step.layout, base.scalar_type(), base.storage_offset() + step.offset));
}

// Reuses memory after its last read. An ATen operation may have returned an input, or one memory twice; memory with
// other references is not reused.
void run_over(const Step& step, Frame& frame) {
  const at::Tensor& base = *frame.slots[step.base].seen;
  const c10::Storage& storage = base.storage();
  if (base.use_count() != 1 || storage.use_count() != 1) {
    frame.slots[step.slot].hold(make_tensor(step.layout));
    return;
  }
  frame.slots[step.slot].hold(tensor_over(storage, step.layout, step.layout.dtype, base.storage_offset()));
}

void run_pool(const Step& step, Frame& frame) {
  Slot& slot = frame.slots[step.slot];
  slot.pointer = static_cast<char*>(frame.pool.mutable_data()) + step.offset;
  if (step.as_tensor) {  // an ATen call reads it; kernels need the pointer alone
    const auto width = int64_t(c10::elementSize(step.layout.dtype));
    slot.hold(tensor_over(frame.pool, step.layout, step.layout.dtype, step.offset / width));
  }
}

thread_local c10::Storage shared_temporaries;

c10::Storage memory_of_temporaries(const Program& program) {
  const bool is_shared = shared_temporaries && shared_temporaries.device() == program.device &&
                         shared_temporaries.nbytes() >= program.pool_bytes;
  return is_shared ? shared_temporaries : make_storage(program.pool_bytes, program.device);
}

}  // namespace

void share_temporaries(c10::Storage memory) { shared_temporaries = std::move(memory); }

void run_steps(const Program& program, Frame& frame) {
  // The autograd node around the graph provides the history; views inside are not visible to the user.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Allocators and the driver act on the current device.
  const bool elsewhere = !program.device.is_cpu() && program.device.has_index();
  const c10::OptionalDeviceGuard on_device(elsewhere ? std::optional(program.device) : std::nullopt);
  frame.device = program.device.is_cuda() ? program.device.index() : -1;
  if (program.pool_bytes) frame.pool = memory_of_temporaries(program);
  for (const Step& step : program.steps) {
    switch (step.kind) {
      case Kind::Alloc:
        frame.slots[step.slot].hold(make_tensor(step.layout));
        break;
      case Kind::Reuse:
        run_over(step, frame);
        break;
      case Kind::Pool:
        run_pool(step, frame);
        break;
      case Kind::Launch:
      case Kind::LaunchCuda:
        if (frame.titles) [[unlikely]] run_profiled_launch(step, frame);
        else run_launch(step, frame);
        break;
      case Kind::Call:
        run_call(*step.call, frame);
        break;
      case Kind::View:
        run_view(step, frame);
        break;
      case Kind::Address:
        frame.slots[step.slot].pointer = static_cast<char*>(frame.slots[step.base].pointer) + step.offset;
        break;
      case Kind::Free:
        frame.slots[step.slot].hold(at::Tensor());
        break;
    }
  }
}

}  // namespace jitmagic
