// Decides which operators are recorded, by their schemas and tags; see lazy.h.

#include <ATen/core/enum_tag.h>

#include "lazy.h"

namespace jitmagic::lazy {
namespace {

// Normalisations write running statistics that their schemas do not declare; the others touch the memory itself.
const std::unordered_set<std::string> OPAQUE = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::_batch_norm_with_update",
    "aten::batch_norm_update_stats",
    "aten::_pin_memory",
    "aten::record_stream",
    "aten::set_data",
    "aten::_cudnn_rnn",
    "aten::_cudnn_init_dropout_state",
    "aten::_make_dual",
    "aten::_nested_tensor_from_mask",
};

// Operators that are not pointwise, whose floats do not decide sizes: arange, linspace and upsampling have some that do.
const std::unordered_set<std::string> INERT_FLOATS = {
    "aten::addmm", "aten::addmv", "aten::addbmm", "aten::baddbmm", "aten::addr", "aten::full", "aten::full_like",
    "aten::new_full", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::native_layer_norm",
    "aten::native_group_norm", "aten::scalar_tensor", "aten::constant_pad_nd", "aten::norm",
    "aten::linalg_vector_norm",
};

bool is_tensor(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::TensorType::get()); }
bool is_tensor_list(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::ListType::ofTensors()); }

// dtypes, layouts and memory formats are ints for the dispatcher.
bool is_name(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::QSchemeType:
      return true;
    default:
      return false;
  }
}

bool depends_on_data(const c10::OperatorHandle& op) {
  // Random operations run when they are called: seeding and saving a generator's state are no operations, so a draw
  // that is deferred could use another state.
  if (op.hasTag(at::Tag::nondeterministic_seeded) || op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::inplace_view))
    return true;
  // The result of indexing has a data-dependent shape only for masks, of which the meta kernel raises.
  return op.hasTag(at::Tag::dynamic_output_shape) && op.schema().name() != "aten::index";
}

Kind kind_of(const Facts& facts) {
  const auto& op = facts.op;
  const auto& schema = op.schema();
  const bool has_kernel =
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !has_kernel) return Kind::composite;
  if (facts.is_opaque || depends_on_data(op) || schema.returns().empty()) return Kind::now;
  int fresh = 0, views = 0, written = 0;
  for (const auto& result : schema.returns()) {
    if (!is_tensor(result.type()) && !is_tensor_list(result.type())) return Kind::now;
    const auto* alias = result.alias_info();
    (!alias ? fresh : alias->isWrite() ? written : views)++;
  }
  if (written + views + fresh > 1 && written + views) return Kind::now;
  if (written) {
    const bool first = facts.writes.size() && facts.writes[0];
    int count = 0;
    for (const bool one : facts.writes) count += one;
    return first && count == 1 && is_tensor(schema.arguments()[0].type()) ? Kind::in_place : Kind::now;
  }
  if (facts.writes_any) return Kind::now;
  return views ? Kind::view : Kind::pure;
}

Facts facts_for(const c10::OperatorHandle& op) {
  Facts facts{op};
  const std::string& name = op.schema().name();
  facts.is_opaque = name.compare(0, 6, "aten::") != 0 || OPAQUE.count(name);
  facts.is_empty = name.compare(0, 11, "aten::empty") == 0 || name.compare(0, 15, "aten::new_empty") == 0;
  facts.has_inert_floats = op.hasTag(at::Tag::pointwise) || INERT_FLOATS.count(name);
  int at = 0;
  for (const auto& argument : op.schema().arguments()) {
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    facts.writes.push_back(writes);
    facts.writes_any |= writes;
    facts.names.push_back(is_name(argument.real_type()));
    if (argument.name() == "device") facts.device = at;
    if (argument.name() == "pin_memory") facts.pinned = at;
    at++;
  }
  facts.kind = kind_of(facts);
  return facts;
}

}  // namespace

const Facts& facts_of(const c10::OperatorHandle& op) {
  // A schema's address identifies the operator as long as it is registered. A thread's own table needs no lock.
  static thread_local std::unordered_map<const void*, const Facts*> known;
  const Facts*& found = known[&op.schema()];
  if (!found) found = new Facts(facts_for(op));  // lives as long as the process: operators are few
  return *found;
}

}  // namespace jitmagic::lazy
