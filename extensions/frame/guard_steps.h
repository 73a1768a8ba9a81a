// Every step of a guard program: its operands in the tuple, and how it runs. A new step is a row here.
//
//   LOAD(op, name, (operands), object)   writes a register; `object` is NULL if nothing is there
//   CHECK(op, name, (operands), holds)   compares; `holds` is false if the fact is not so
//
// This file is included once for each use of the rows: the enumeration of steps (guards.h), their
// operands (guard_program.cpp), the two switches that run them (guards.cpp). The expressions read
// `step`, `base` (the register of operand Base), `registers` and the call's `args`. A LOAD stands
// for one kind of Source, whose row in jitmagic/guards/source/ names it.
//
// Switches, not tables of functions: a step costs 1 to 3 ns, as much as an indirect call.

LOAD(Argument, "ARGUMENT", (Index), args[step.number])
LOAD(NamespaceItem, "NAMESPACE_ITEM", (SpaceDict, Name), step.lookup.in(step.space, step.object))
LOAD(Cell, "CELL", (Base), PyCell_Check(base) ? PyCell_GET(base) : nullptr)
LOAD(InstanceDict, "INSTANCE_DICT", (Base), instance_dict(base))
LOAD(InstanceItem, "INSTANCE_ITEM", (Base, Name), step.lookup.in_instance(base, step.object))
LOAD(Item, "ITEM", (Base, Key), item(base, step))
LOAD(DictKey, "DICT_KEY", (Base, Number), key_at(base, step.number))
LOAD(DictValue, "DICT_VALUE", (Base, Number), value_at(base, step.number))
LOAD(Type, "TYPE", (Base), reinterpret_cast<PyObject*>(Py_TYPE(base)))
LOAD(TypeAttr, "TYPE_ATTR", (Base, Name), type_attribute(base, step.object))
LOAD(Slot, "SLOT", (Base, Name), slot(base, step.object, registers))
LOAD(FunctionPart, "FUNCTION_PART", (Base, PartName), function_part(base, step.number))
LOAD(ModuleItem, "MODULE_ITEM", (Base, Name),
     PyModule_Check(base) ? step.lookup.in(PyModule_GetDict(base), step.object) : nullptr)
LOAD(IteratorParts, "ITERATOR_PARTS", (Base), registers.keep(iterator_parts(base)))
LOAD(Contents, "CONTENTS", (Base), contents(base, registers))
LOAD(LengthOf, "LENGTH_OF", (Base), length_as_int(base, registers))
LOAD(NumberOf, "NUMBER_OF", (Base, Tuple), number_of(base, step.object, registers))  // its classes
LOAD(ItemAt, "ITEM_AT", (Base, Other), item_at(base, registers[step.other]))
LOAD(AttributeAt, "ATTRIBUTE_AT", (Base, Other, Tuple),  // tables after __dict__
     attribute_at(base, registers[step.other], step.object))
LOAD(Joined, "JOINED", (Base, Name, SpaceName), joined(base, step, registers))  // text before, after
LOAD(Part, "PART", (Base, Slice), part(base, step.object, registers))
LOAD(Reduced, "REDUCED", (Base, CFunction), reduced(base, step.object, registers))
LOAD(Gradient, "GRADIENT", (Base, Getset, SpaceTuple), gradient(base, step, registers))  // classes
LOAD(ArrayMemory, "ARRAY_MEMORY", (Base, CFunction, SpaceType), array_memory(base, step, registers))
LOAD(Referent, "REFERENT", (Base), referent_of(base, registers))
LOAD(CacheEntry, "CACHE_ENTRY", (Base, Object), jm_cached_result(base, step.object))

CHECK(TypeIs, "TYPE_IS", (Base, WeakType), (PyObject*)Py_TYPE(base) == referent(step.object))
CHECK(Is, "IS", (Base, Object), base == step.object)
CHECK(IsWeak, "IS_WEAK", (Base, Weak), base == referent(step.object))
CHECK(Equals, "EQUALS", (Base, Object), same_constant(base, step.object))
CHECK(Length, "LENGTH", (Base, Number), length_of(base) == step.number)
CHECK(DictKeys, "DICT_KEYS", (Base, Tuple, SpaceObject),  // marker for any key
      same_keys(base, step.object, step.space))
CHECK(SetHas, "SET_HAS", (Base, Object, Number), set_has(base, step.object, step.number != 0))
CHECK(KeyAbsent, "KEY_ABSENT", (Base, Object),
      PyDict_Check(base) && !step.lookup.in(base, step.object))
CHECK(EntriesEmpty, "ENTRIES_EMPTY", (Base, Tuple, AbsentKeys),
      step.tables->hold(base, step.object, step.space, false))
CHECK(InstanceAbsent, "INSTANCE_ABSENT", (Base, Name), !step.lookup.in_instance(base, step.object))
CHECK(NamespaceAbsent, "NAMESPACE_ABSENT", (SpaceDict, Name),
      !step.lookup.in(step.space, step.object))
CHECK(Class, "CLASS", (Class), step.facts->hold())
CHECK(Namespace, "NAMESPACE", (Namespace), step.names->hold())
CHECK(StateRead, "STATE_READ", (SpaceFunction, Object, Number), reads_the_same(step))  // final?
CHECK(CellEmpty, "CELL_EMPTY", (Base), PyCell_Check(base) && !PyCell_GET(base))
CHECK(CacheLacks, "CACHE_LACKS", (Base, Object, SpaceTuple), cache_lacks(base, step))  // allowed
CHECK(FlattensTo, "FLATTENS_TO", (Base, Tuple, SpaceTuple), flattens_to(base, step))
CHECK(FieldsEqual, "FIELDS_EQUAL", (Base, Tuple, SpaceTuple), fields_equal(base, step))
CHECK(Tensor, "TENSOR", (Base, Tensor), step.torch->passes(base))
CHECK(TensorKind, "TENSOR_KIND", (Base, TensorKind), step.torch->passes(base))
CHECK(Unhooked, "UNHOOKED", (Base), is_unhooked(base))
CHECK(InRange, "IN_RANGE", (Base, Range), step.torch->passes(base))
CHECK(Same, "SAME", (Base, Other), base == registers[step.other])
CHECK(HasKeyAt, "HAS_KEY_AT", (Base, Other, Number),  // whether it is present
      has_key_at(base, registers[step.other], step.number != 0))
CHECK(Different, "DIFFERENT", (Registers, OtherRegisters), all_different(step, registers))
CHECK(NoOverlap, "NO_OVERLAP", (Registers), no_overlap(step, registers))
CHECK(Sizes, "SIZES", (Registers, SizesProgram), sizes_relate(step, registers))
CHECK(Numbers, "NUMBERS", (Registers, NumbersProgram), sizes_relate(step, registers))
CHECK(State, "STATE", (State), step.torch->passes(nullptr))
CHECK(Autocast, "AUTOCAST", (Autocast), step.torch->passes(nullptr))
