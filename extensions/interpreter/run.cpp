// Runs programs: a loop over instructions, each of which works on a block that stays in the first cache.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <jitmagic/parallel.h>

#include "program.h"

namespace jitmagic::blocks {
namespace {

constexpr double kParallelWork = 40'000;  // as PARALLEL_WORK in schedule/score.py
constexpr double kGrain = 30'000;         // least work of one thread
constexpr double kDispatch = 30;          // of an instruction, in additions of one element: 4 to 6 ns
constexpr int64_t kMostParts = 64;        // of a loop that accumulates

// Fetches the next block of each view from memory while this one is computed, a few lines before each operation.
// relu(x * y + 2) * x - y of 2048 by 2048 floats takes 3.6 ms instead of 4.7; all lines at once took as long as none.
class Ahead {
 public:
  void add(const char* begin, int64_t bytes) {
    next_[count_ % kMost] = {begin + bytes, begin + 2 * bytes};
    ++count_;
  }
  void fetch() {
    int left = kLines;
    for (Range& range : next_) {
      for (; range.at < range.end && left; range.at += 64, --left) __builtin_prefetch(range.at);
    }
  }

 private:
  static constexpr unsigned kMost = 4;
  static constexpr int kLines = 32;
  struct Range {
    const char *at = nullptr, *end = nullptr;
  };
  Range next_[kMost];
  unsigned count_ = 0;
};

// The arguments of one call, with the scratch memory that it allocates.
class Arguments {
 public:
  Arguments(const Program& program, void* const* args) : args_(args), first_(size_t(program.arguments) + 1) {
    if (!program.scratch) return;
    all_.assign(args, args + program.arguments);
    all_.push_back(program.sizes ? args[program.arguments] : nullptr);
    all_.resize(first_ + size_t(program.scratch));
  }
  Arguments(const Arguments&) = delete;
  ~Arguments() {
    for (size_t i = first_; i < all_.size(); ++i) std::free(all_[i]);
  }
  void allocate(int number, int64_t bytes) {
    void*& memory = all_[size_t(number)];
    std::free(memory);
    memory = std::aligned_alloc(64, size_t(std::max<int64_t>(bytes, 1) + 63) / 64 * 64);
    if (!memory) throw std::bad_alloc();
  }
  void* operator[](int number) const { return all_.empty() ? args_[number] : all_[size_t(number)]; }

 private:
  void* const* args_;
  std::vector<void*> all_;  // empty without scratch memory
  size_t first_;
};

// The registers of one thread.
class State {
 public:
  State(const Program& program, Arguments& args, int* bad)
      : program(program), args(args), bad(bad), n(program.lanes), registers_(program.places.size()) {
    const size_t bytes = std::max<size_t>(program.bytes, 64);
    memory_ = static_cast<char*>(std::aligned_alloc(64, bytes));
    if (!memory_) throw std::bad_alloc();
    for (size_t r = 0; r < registers_.size(); ++r) registers_[r] = memory_ + program.places[r];
  }
  // A copy for another thread; views stay where they are.
  explicit State(const State& of) : State(of.program, of.args, of.bad) {
    n = of.n;
    std::memcpy(memory_, of.memory_, program.bytes);
    const char* end = of.memory_ + program.bytes;
    for (size_t r = 0; r < registers_.size(); ++r) {
      if (of.registers_[r] < of.memory_ || of.registers_[r] >= end) registers_[r] = of.registers_[r];
    }
    is_alone = false;
  }
  State& operator=(const State&) = delete;
  ~State() { std::free(memory_); }

  char*& at(int r) { return registers_[size_t(r)]; }
  int64_t& whole(int r) { return *reinterpret_cast<int64_t*>(registers_[size_t(r)]); }
  void* argument(int number) const { return args[number]; }

  const Program& program;
  Arguments& args;
  int* bad;
  int64_t n;              // elements of the current block
  Ahead ahead;
  bool is_alone = true;  // no other thread runs this program

 private:
  std::vector<char*> registers_;
  char* memory_;
};

void run(State& state, int begin, int end);

// -- loops --------------------------------------------------------------------------------------------------------------

struct Extents {
  int64_t of[16];
  int count;
  int64_t rounds = 1;  // of the loop
};

// Most rows are one block, and a division takes as long as an instruction.
int64_t blocks_in(int64_t extent, int64_t lanes) { return extent > lanes ? (extent + lanes - 1) / lanes : extent > 0; }

Extents extents_of(State& state, const Instruction& loop) {
  Extents made;
  made.count = int(loop.terms.size()) / 2;
  for (int i = 0; i < made.count; ++i) {
    int64_t extent = std::max<int64_t>(state.whole(loop.terms[size_t(2 * i + 1)]), 0);
    if (loop.blocked && i + 1 == made.count) extent = blocks_in(extent, state.program.lanes);
    made.of[i] = extent;
    made.rounds *= extent;
  }
  return made;
}

void run_rounds(State& state, const Instruction& loop, int body, const Extents& extents, int64_t begin, int64_t end) {
  const int64_t before = state.n, lanes = state.program.lanes;
  const int last = extents.count - 1;
  int64_t point[16], rest = begin;
  for (int i = last; i >= 0; --i) {
    point[i] = rest ? rest % extents.of[i] : 0;
    rest = rest ? rest / extents.of[i] : 0;
  }
  for (int64_t round = begin; round < end; ++round) {
    for (int i = 0; i <= last; ++i) state.whole(loop.terms[size_t(2 * i)]) = point[i];
    if (loop.blocked) {
      const int64_t start = point[last] * lanes;
      state.whole(loop.terms[size_t(2 * last)]) = start;
      state.n = std::min(lanes, state.whole(loop.terms[size_t(2 * last + 1)]) - start);
    }
    run(state, body, loop.end);
    for (int i = last; i >= 0 && ++point[i] == extents.of[i]; --i) point[i] = 0;
  }
  state.n = before;
}

// Estimates the work of a loop in additions of one element.
double work_of(State& state, int at) {
  const Instruction& loop = state.program.code[size_t(at)];
  const Extents extents = extents_of(state, loop);
  const double lanes = loop.blocked ? std::min<double>(state.program.lanes, double(state.whole(loop.terms.back()))) : 1;
  double round = double(loop.number) * lanes;
  for (int inner = at + 1; inner < loop.end; ++inner) {
    round += kDispatch;
    if (state.program.code[size_t(inner)].kind != Kind::Loop) continue;
    round += work_of(state, inner) * lanes;
    inner = state.program.code[size_t(inner)].end - 1;
  }
  return round * double(extents.rounds);
}

// Runs parts of a loop that accumulates, each from the totals of before the loop; then adds their totals in order. The
// parts depend on the work alone, so that results do not depend on the number of threads.
void run_parts(State& state, const Instruction& loop, int body, const Extents& extents, double work) {
  const auto wanted = int64_t(std::min(work / kGrain, double(kMostParts)));
  const int64_t parts = std::max<int64_t>(std::min(wanted, extents.rounds), 1);
  std::vector<std::unique_ptr<State>> states;
  for (int64_t part = 0; part < parts; ++part) states.push_back(std::make_unique<State>(state));
  jm::parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const jm::Range rounds = jm::part_of(extents.rounds, part, parts);
      run_rounds(*states[size_t(part)], loop, body, extents, rounds.begin, rounds.end);
    }
  });
  for (int at : loop.totals) {
    const Instruction& made = state.program.code[size_t(at)];
    const int total = made.operands[0], extra = made.operands[1];
    const int64_t count = made.kind == Kind::Join && made.is_block ? state.n : 1;
    for (auto& part : states) {
      made.reduction->merge(state.at(total), extra < 0 ? nullptr : state.at(extra), part->at(total),
                            extra < 0 ? nullptr : part->at(extra), count);
    }
  }
}

void run_loop(State& state, int at) {
  const Instruction& loop = state.program.code[size_t(at)];
  const Extents extents = extents_of(state, loop);
  if (!extents.rounds) return;
  if (loop.parallel && state.is_alone && extents.rounds > 1) {
    const double work = work_of(state, at);
    if (work > kParallelWork) {
      if (!loop.totals.empty()) return run_parts(state, loop, at + 1, extents, work);
      const auto grain = int64_t(std::max(kGrain / (work / double(extents.rounds)), 1.0));
      if (jm::threads_for(extents.rounds, grain) > 1) {
        return jm::parallel_for(extents.rounds, grain, [&](int64_t begin, int64_t end) {
          State own(state);
          run_rounds(own, loop, at + 1, extents, begin, end);
        });
      }
    }
  }
  run_rounds(state, loop, at + 1, extents, 0, extents.rounds);
}

// -- instructions -------------------------------------------------------------------------------------------------------

void* address(State& state, int argument, int offset, Type type) {
  return static_cast<char*>(state.argument(argument)) + state.whole(offset) * bytes_of(type);
}

void run_access(State& state, const Instruction& made, int64_t n) {
  const Access& access = *made.access;
  const int* o = made.operands;
  if (made.kind >= Kind::Store) {
    void* memory = address(state, o[0], o[1], access.type);
    const auto* index = reinterpret_cast<const int64_t*>(state.at(o[2]));
    switch (made.kind) {
      case Kind::Store: return access.store(memory, *index, state.at(o[3]), n);
      case Kind::Scatter: return access.scatter(memory, index, state.at(o[3]), n);
      case Kind::Add: return access.add(memory, *index, state.at(o[3]), n);
      default: return access.add_at(memory, index, state.at(o[3]), n);
    }
  }
  const void* memory = address(state, o[1], o[2], access.type);
  const auto* index = reinterpret_cast<const int64_t*>(state.at(o[3]));
  switch (made.kind) {
    case Kind::Load: return access.load(state.at(o[0]), memory, *index, n);
    case Kind::LoadIf: return access.load_if(state.at(o[0]), memory, *index, state.at(o[4]), state.at(o[5]), n);
    case Kind::Gather: return access.gather(state.at(o[0]), memory, index, n);
    default: return access.gather_if(state.at(o[0]), memory, index, state.at(o[4]), state.at(o[5]), n);
  }
}

void run_indexes(State& state, const Instruction& made, int64_t n) {
  const Operations& operations = *state.program.operations;
  const int* o = made.operands;
  auto* out = reinterpret_cast<int64_t*>(state.at(o[0]));
  if (made.kind == Kind::Check) {
    const void* mask = o[3] < 0 ? nullptr : state.at(o[3]);
    return operations.checked(out, reinterpret_cast<int64_t*>(state.at(o[1])), state.whole(o[2]), mask, state.bad, n);
  }
  const Indexes fill = made.kind == Kind::Iota        ? operations.iota
                       : made.kind == Kind::Quotients ? operations.quotients
                                                      : operations.remainders;
  fill(out, state.whole(o[1]), state.whole(o[2]), o[3] < 0 ? 0 : state.whole(o[3]), n);
}

void run_total(State& state, const Instruction& made, int64_t n) {
  const int* o = made.operands;
  void* extra = o[1] < 0 ? nullptr : state.at(o[1]);
  const int64_t position = o[3] < 0 ? 0 : state.whole(o[3]);
  if (made.kind == Kind::Join) return made.reduction->join(state.at(o[0]), extra, state.at(o[2]), position, n);
  made.reduction->reduce(state.at(o[0]), extra, state.at(o[2]), position, o[4] < 0 ? 0 : state.whole(o[4]), n);
}

void run_view(State& state, const Instruction& made) {
  const int* o = made.operands;
  char* begin = static_cast<char*>(state.argument(o[1])) + state.whole(o[2]) * made.bytes;
  state.at(o[0]) = begin;
  if (made.first) state.ahead.add(begin, state.n * made.bytes);
}

void run_product(State& state, const Instruction& made) {
  const int* t = made.terms.data();
  const auto whole = [&](int at) { return state.whole(t[at]); };
  const auto start = [&](int at) { return static_cast<float*>(state.argument(t[at])) + whole(at + 1); };
  const ProductShape shape{whole(0), whole(1), whole(2),  whole(5), whole(6),
                           whole(9), whole(10), whole(13), made.number != 0};
  state.program.operations->product(shape, start(3), start(7), start(11));
}

int64_t sum_of(State& state, const Instruction& made) {
  uint64_t sum = made.number;  // unsigned: malformed programs may overflow
  for (size_t i = 0; i < made.terms.size(); i += 2) {
    sum += uint64_t(state.whole(made.terms[i])) * uint64_t(state.whole(made.terms[i + 1]));
  }
  return int64_t(sum);
}

void run(State& state, int begin, int end) {
  const Instruction* code = state.program.code.data();
  for (int at = begin; at < end; ++at) {
    const Instruction& made = code[at];
    const int* o = made.operands;
    const int64_t n = made.is_block ? state.n : 1;
    switch (made.kind) {
      case Kind::Point: {
        const void* a = state.at(o[1]);
        const void* b = o[2] < 0 ? nullptr : state.at(o[2]);
        const void* c = o[3] < 0 ? nullptr : state.at(o[3]);
        if (made.is_block) {
          state.ahead.fetch();
          made.point->run(state.at(o[0]), a, b, c, n);
        } else {
          made.point->one(state.at(o[0]), a, b, c);
        }
        break;
      }
      case Kind::Loop:
        run_loop(state, at);
        at = made.end - 1;
        break;
      case Kind::View:
        run_view(state, made);
        break;
      case Kind::Sum:
        state.whole(o[0]) = sum_of(state, made);
        break;
      case Kind::Constant:
        state.whole(o[0]) = int64_t(made.number);
        break;
      case Kind::Scratch:
        state.args.allocate(o[0], state.whole(o[1]) * bytes_of(made.access->type));
        break;
      case Kind::Product:
        run_product(state, made);
        break;
      case Kind::Size:
        state.whole(o[0]) = static_cast<const int64_t*>(state.argument(state.program.arguments))[o[1]];
        break;
      case Kind::Fill:
        made.access->fill(state.at(o[0]), state.at(o[1]), n);
        break;
      case Kind::Reduce:
      case Kind::Join:
        if (made.is_block) state.ahead.fetch();
        run_total(state, made, n);
        break;
      case Kind::Iota:
      case Kind::Quotients:
      case Kind::Remainders:
      case Kind::Check:
        run_indexes(state, made, n);
        break;
      default:
        run_access(state, made, n);
    }
  }
}

}  // namespace

int Program::run(void* const* args) const {
  int bad = 0;
  Arguments all(*this, args);
  State state(*this, all, &bad);
  blocks::run(state, 0, int(code.size()));
  return bad;
}

int run_program(void* const* args) {
  const auto* program = static_cast<const Program*>(args[-1]);
  if (const Function compiled = program->compiled.load(std::memory_order_acquire)) return compiled(args);
  return program->run(args);
}

}  // namespace jitmagic::blocks
