// The parts of a matrix product that do not depend on its epilogue, for gemm.h and chain.h. They are
// compiled once per machine (runtime/toolchain.py).
//
// Method: register tiles of accumulators; per k one or two vectors of the "lane" operand, and of the
// "row" operand one scalar per row, broadcast from memory. If B's rows are contiguous they are the
// lanes, in tiles of 12 rows by 2 vectors (with AVX-512), which without an epilogue are stored straight
// to C: for small K that is most of the remaining time. In NT neither operand has lanes, so the smaller
// one is packed, transposed, into panels; if that is A, the tile (L rows, one vector) holds C^T and is
// transposed in registers before the epilogue. With few rows of A, NT takes dot products along K
// instead.
//
// A chain uses gemm's tile for C^T. L rows of A are the lanes, packed, transposed, into a panel; the
// result of a tile (L columns of all lanes) is already in the layout of the next product's panel, so
// that there is no packing, transposing or waiting between products.
#include <jitmagic/chain.h>

// Kept out of line: inlined, each would be compiled several times.
#define JM_APART __attribute__((noinline))

namespace jm::detail {
namespace {

// The operands of the register tile: `rows` are broadcast, `lanes` are loaded as vectors.
struct RowSide {
    const float* p;
    int64_t row, k;
};
struct LaneSide {
    const float* p;
    int64_t k;
};

// Rows 0…7 of a tile from one base and four strides in registers, rows 8…15 from a second base:
// otherwise the compiler keeps sixteen offsets, most of them in memory, and loads one per
// multiplication. `opaque` keeps it from splitting the strides again.
template <class T> JM_INLINE T opaque(T x) {
    asm("" : "+r"(x));
    return x;
}
struct RowStrides {
    int64_t one, three, five, seven;   // in bytes
    JM_INLINE explicit RowStrides(int64_t row)
        : one(opaque(row * 4)),
          three(opaque(row * 12)),
          five(opaque(row * 20)),
          seven(opaque(row * 28)) {}
    JM_INLINE float at(const char* p, int r) const {
        const char* from = r == 0   ? p
                           : r == 1 ? p + one
                           : r == 2 ? p + one * 2
                           : r == 3 ? p + three
                           : r == 4 ? p + one * 4
                           : r == 5 ? p + five
                           : r == 6 ? p + three * 2
                                    : p + seven;
        return *(const float*)from;
    }
};

// out[r][…] = sum over k of row r's scalar times C vectors of lanes, one or two. It is out of line,
// because its loop needs every register, and has a variant for Packed lanes, C vectors apart. `more`:
// R further rows follow, and are prefetched. (Nothing after the end of a matrix is prefetched: another
// thread may be writing there.)
template <int R, int C, bool Packed>
JM_APART void multiply(RowSide rows, LaneSide cols, int64_t K, float* out, int64_t ldo, bool more) {
    Lanes sum[R * C];   // unrolled in all uses: otherwise it would be in memory
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) sum[i] = Lanes(0.0f);
    RowStrides strides(rows.row);
    const char *p = (const char*)rows.p, *p8 = opaque(p + rows.row * 32);
    const float* q = cols.p;
    int64_t step = rows.k * 4, next = Packed ? C * L : cols.k;
    bool fetch = more && rows.k == 1 && rows.row == K;
    const char* ahead = (const char*)(rows.p + (fetch ? R * rows.row : 0));
    int64_t hop = fetch ? R * 4 : 0;
    for (int64_t k = 0; k < K; ++k, p += step, p8 += step, q += next, ahead += hop) {
        __builtin_prefetch(ahead);
        Lanes b0 = Lanes::load(q), b1 = C > 1 ? Lanes::load(q + L) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            Lanes a(strides.at(r < 8 ? p : p8, r & 7));
            sum[r * C] = fma(a, b0, sum[r * C]);
            if constexpr (C > 1) sum[r * C + 1] = fma(a, b1, sum[r * C + 1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        sum[r * C].store(out + r * ldo);
        if constexpr (C > 1) sum[r * C + 1].store(out + r * ldo + L);
    }
}

// The rows of a tile: as many as leave registers for two vectors of lanes and a scalar.
constexpr int tallest = JM_AVX512 || JM_NEON ? 12 : 6;
constexpr int lower(int rows) { return rows > 8 ? 8 : rows > 4 ? 4 : rows / 2; }

// Any number of rows, R at a time, the remainder with lower tiles.
template <int R, int C, bool Packed> JM_INLINE void multiply_rows(RowSide rows, LaneSide cols, int64_t K,
                                                     int64_t height, float* out, int64_t ldo) {
#pragma GCC unroll 1
    for (; height >= R; height -= R, out += R * ldo, rows.p += R * rows.row)
        multiply<R, C, Packed>(rows, cols, K, out, ldo, height >= 2 * R);
    if constexpr (R > 1) multiply_rows<lower(R), C, Packed>(rows, cols, K, height, out, ldo);
}

// Lane l of row r <-> lane r of row l, by log2(L) exchanges of blocks.
template <int D, int... I> JM_INLINE void exchange(Lanes& a, Lanes& b, seq<I...>) {
    using R = Lanes::storage;
    R low = reg::shuffled<R>(a.v, b.v, seq<((I & D) ? L + I - D : I)...>{});
    b = Lanes(reg::shuffled<R>(a.v, b.v, seq<((I & D) ? L + I : I + D)...>{}));
    a = Lanes(low);
}
template <int D = 1> JM_INLINE void exchange_all(Lanes (&t)[L]) {
    if constexpr (D < L) {
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i)
            if (!(i & D)) exchange<D>(t[i], t[i + D], seq_to<L>{});
        exchange_all<2 * D>(t);
    }
}
// L rows of L floats, `from_step` apart, transposed into L rows that are `to_step` apart.
JM_APART void transpose(float* to, int64_t to_step, const float* from, int64_t from_step) {
    Lanes t[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i] = Lanes::load(from + i * from_step);
    exchange_all(t);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) t[i].store(to + i * to_step);
}

// A part of the product: `rows` x `lanes` of C, or of its transpose if Swapped, from (row, lane) on.
struct Area {
    int64_t row, rows, lane, lanes;
};

void store_block(const Output& out, const float* sums, int64_t stride, Block at) {
    NoEpilogue none;
    put_block<NoEpilogue>({out.c, out.ldc, &none, nullptr}, sums, stride, at);
}

JM_INLINE void put(const Output& out, const float* sums, int64_t stride, Block at) {
    (out.put ? out.put : store_block)(out, sums, stride, at);
}

// All rows of an area, whose lanes are C vectors.
template <bool Swapped, int C>
JM_APART void multiply_area(RowSide rows, LaneSide cols, int64_t K, Area whole, const Output& out) {
    constexpr int block = Swapped ? L : tallest;
    if (!Swapped && !out.put && whole.lanes == C * L) {
        // no epilogue: store straight to C
        float* c = out.c + whole.row * out.ldc + whole.lane;
        multiply_rows<block, C, Swapped>(rows, cols, K, whole.rows, c, out.ldc);
        return;
    }
    alignas(64) float sums[block * C * L];
#pragma GCC unroll 1
    for (int64_t done = 0; done < whole.rows; done += block) {
        int64_t left = whole.rows - done, height = left < block ? left : block;
        RowSide at{rows.p + done * rows.row, rows.row, rows.k};
        multiply_rows<block, C, Swapped>(at, cols, K, height, sums, C * L);
        int64_t row = whole.row + done;
        if constexpr (Swapped) {
            transpose(sums, L, sums, L);
            put(out, sums, L, {whole.lane, whole.lanes, row, height});
        } else {
            put(out, sums, C * L, {row, height, whole.lane, whole.lanes});
        }
    }
}

// Scratch memory that is reused between calls: fresh pages each time would slow packing. It belongs to
// the library, not to a thread, because glibc keeps a library mapped until all threads with
// destructors from it have ended, the main thread included: each reset and compile left 3 to 5
// mappings behind.
constexpr int idle_slots = 64;
struct Block {
    int64_t floats;
};
Block* idle[idle_slots];

// The first slot that a thread tries: it finds its own previous pages, which are near its core.
JM_INLINE int slot_of_thread() {
    return int((uintptr_t)__builtin_frame_address(0) >> 20) & (idle_slots - 1);
}

JM_APART Block* fresh_block(Block* small, int64_t n) {
    __builtin_free(small);
    Block* made = (Block*)__builtin_malloc(sizeof(Block) + uint64_t(n) * sizeof(float) + 64);
    if (!made) __builtin_trap();
    made->floats = n;
    return made;
}

JM_APART Block* idle_block() {
    int first = slot_of_thread();
    for (int i = 0; i < idle_slots; ++i) {
        Block*& slot = idle[(first + i) & (idle_slots - 1)];
        if (!__atomic_load_n(&slot, __ATOMIC_RELAXED)) continue;
        if (Block* found = __atomic_exchange_n(&slot, nullptr, __ATOMIC_ACQUIRE)) return found;
    }
    return nullptr;
}
JM_APART void keep_idle(Block* block) {
    int first = slot_of_thread();
    for (int i = 0; i < idle_slots; ++i) {
        Block* none = nullptr;
        Block*& slot = idle[(first + i) & (idle_slots - 1)];
        if (__atomic_compare_exchange_n(&slot, &none, block, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    __builtin_free(block);
}

// A block for one part of one call, until the end of the scope.
struct Scratch {
    Block* block = nullptr;
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    ~Scratch() {
        if (block) keep_idle(block);
    }
    float* at_least(int64_t floats) {   // discards the old contents
        if (!block) block = idle_block();
        if (!block || block->floats < floats) block = fresh_block(block, floats);
        return (float*)(((uintptr_t)(block + 1) + 63) & ~uintptr_t(63));
    }
};

// Runs when the library is unmapped; at exit threads may still be inside, and find no block.
__attribute__((destructor)) void free_idle_blocks() {
    for (Block*& slot : idle) __builtin_free(__atomic_exchange_n(&slot, nullptr, __ATOMIC_ACQUIRE));
}

struct Shape {
    int64_t rows, lanes, K;
};

// The layout of the lane operand: contiguous along its lanes, or along K (then it is packed,
// transposed).
struct LaneOperand {
    const float* p;
    int64_t lane, k;   // strides, one of them 1
};

constexpr int64_t pack_from = 4;   // tiles per panel from which a plain copy of a panel pays

// panel[k][l] = x[(first + l) * stride + k], zero beyond `count` lanes; `width` floats per k, and k up
// to K rounded up to L.
JM_APART void pack_transposed(float* panel, int64_t width, const float* x, int64_t stride,
                              int64_t count, int64_t K) {
    for (int64_t first = 0; first < width; first += L) {
        const float* from = x + first * stride;
        float* to = panel + first;
        for (int64_t k = 0; k < K; k += L, from += L, to += L * width) {
            if (K - k >= L && count - first >= L) {
                transpose(to, width, from, stride);
                continue;
            }
#pragma GCC unroll 1
            for (int64_t l = 0; l < L; ++l) {
                Lanes row = first + l >= count ? Lanes(0.0f)
                                               : Lanes::load(from + l * stride, K - k);
                row.store(to + l * width);
            }
            transpose(to, width, to, width);
        }
    }
}
JM_APART void pack_rows(float* panel, int64_t width, const float* x, int64_t stride, int64_t count,
                        int64_t K) {
    for (int64_t k = 0; k < K; ++k) {
        for (int64_t l = 0; l < width; l += L) {
            const float* from = x + k * stride + l;
            Lanes row = count - l >= L ? Lanes::load(from) : Lanes::load(from, count - l);
            row.store(panel + k * width + l);
        }
    }
}
// Swapped tiles read only packed panels. (If both strides are 1, as for a single column or an
// overlapping view, both ways of packing are right.)
template <bool Swapped>
JM_APART LaneSide panel_of(LaneOperand x, int64_t first, int64_t count, int64_t width, Shape s,
                           Scratch& scratch) {
    const float* from = x.p + first * x.lane;
    const bool pays = s.rows >= pack_from * tallest || count != width;
    if (!Swapped && x.lane == 1 && !pays) return {from, x.k};
    float* panel = scratch.at_least((s.K + L) * width);
    if (x.lane == 1) pack_rows(panel, width, from, x.k, count, s.K);
    else pack_transposed(panel, width, from, x.lane, count, s.K);
    return {panel, width};
}

// Panels of `wide` vectors cover the lanes, the last one narrower if one vector of lanes is left. The
// work is a line of units, one per row and vector, panel by panel, of which threads take equal parts:
// each packs its panels itself (reading a panel that another core wrote is slower than packing it), so
// that no thread waits.
template <bool Swapped>
void gemm_tiles(Shape s, RowSide rows, LaneOperand x, const Output& out, int threads) {
    constexpr int wide = Swapped ? 1 : 2, align = Swapped ? L : 4;
    int64_t vectors = (s.lanes + L - 1) / L;
    parallel_region(threads, [&](int part, int parts) JM_APART {
        Range units = part_of(vectors * s.rows, part, parts, align * wide);
        Scratch scratch;
        while (units.begin < units.end) {
            int64_t panel = units.begin ? units.begin / (wide * s.rows) : 0;
            int64_t v = panel * wide, start = v * s.rows;
            int64_t each = vectors - v < wide ? vectors - v : wide, lane = v * L;
            int64_t first = (units.begin - start) >> (each - 1);
            int64_t last = (units.end - start) >> (each - 1);
            if (last > s.rows) last = s.rows;
            int64_t lanes = s.lanes - lane < each * L ? s.lanes - lane : each * L;
            LaneSide cols = panel_of<Swapped>(x, lane, lanes, each * L, s, scratch);
            RowSide at{rows.p + first * rows.row, rows.row, rows.k};
            Area area{first, last - first, lane, lanes};
            if (each == wide) multiply_area<Swapped, wide>(at, cols, s.K, area, out);
            else multiply_area<Swapped, 1>(at, cols, s.K, area, out);
            units.begin = start + last * each;
        }
    });
}

// Rows [m, m + count) of the products after A, whose panel is given; `free` is scratch memory.
void follow(const float* panel, float* free, int64_t m, int64_t count, const Step* step) {
    for (; step->finish; panel = free, free += step->N * L, ++step) {
        RowSide rows{step->b.p, step->b.n, step->b.k};
#pragma GCC unroll 1
        for (int64_t n = 0; n < step->N; n += L, rows.p += L * rows.row) {
            int64_t left = step->N - n, height = left < L ? left : L;
            float* sums = free + n * L;
            if (left >= L) multiply<L, 1, true>(rows, {panel, L}, step->K, sums, L, left >= 2 * L);
            else multiply_rows<lower(L), 1, true>(rows, {panel, L}, step->K, left, sums, L);
            step->finish(step->epilogue, sums, n, height);
        }
    }
    multiply_area<true, 1>({step->b.p, step->b.n, step->b.k}, {panel, L}, step->K,
                           {0, step->N, m, count}, step->out);
}

// One link of few rows, `stride` apart, with its columns divided between threads: x -> free. The sums
// of a column are transposed into a vector for its epilogue, and back into rows.
void follow_rows(const float* x, int64_t stride, float* free, int64_t M, const Step& step) {
    constexpr int R = 4;
    int team = threads_for(M * step.N * (step.K + 16), thread_grain);
    parallel_region(team, [&](int part, int parts) JM_APART {
        Range mine = part_of(step.N, part, parts, L);
        for (int64_t n = mine.begin; n < mine.end; n += R) {
            int64_t count = mine.end - n < R ? mine.end - n : R;
            const float* b = step.b.p + n * step.b.n;
            alignas(64) float columns[R * L] = {};
            for (int64_t m = 0; m < M; ++m) {
                float sums[R];
                if (count == R) dots<R>(x + m * stride, b, step.b.n, step.K, sums);
                else
                    for (int64_t i = 0; i < count; ++i)
                        dots<1>(x + m * stride, b + i * step.b.n, step.b.n, step.K, sums + i);
                for (int64_t i = 0; i < count; ++i) columns[i * L + m] = sums[i];
            }
            step.finish(step.epilogue, columns, n, count);
            for (int64_t i = 0; i < count; ++i)
                for (int64_t m = 0; m < M; ++m) free[m * step.N + n + i] = columns[i * L + m];
        }
    });
}

// The total width of the intermediate results.
int64_t widths(const Step* step) {
    int64_t sum = 0;
    for (; step->finish; ++step) sum += step->N;
    return sum;
}

}   // namespace

void tiles(bool swapped, int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b, const Output& out,
           int threads) {
    if (swapped) gemm_tiles<true>({N, M, K}, {b.p, b.n, b.k}, {a.p, a.m, a.k}, out, threads);
    else gemm_tiles<false>({M, N, K}, {a.p, a.m, a.k}, {b.p, b.n, b.k}, out, threads);
}

void tiles_or_dots(bool swapped, int64_t M, int64_t N, int64_t K, MatrixA a, MatrixB b,
                   const Output& out, int threads) {
    if (M >= L / 2) return tiles(swapped, M, N, K, a, b, out, threads);
    parallel_region(threads, [&](int part, int parts) JM_APART {
        Range mine = part_of(N, part, parts, L);
        for (int64_t n = mine.begin; n < mine.end; n += L) {
            int64_t count = mine.end - n < L ? mine.end - n : L;
            alignas(64) float sums[L / 2 * L];
            for (int64_t m = 0; m < M; ++m) {
                Lanes(0.0f).store(sums + m * L);
                dots_of_row(a.p + m * a.m, b, n, count, K, sums + m * L);
            }
            put(out, sums, L, {0, M, n, count});
        }
    });
}

void products(int64_t M, MatrixA a, const Step* steps, int count) {
    int64_t panels = (M + L - 1) / L, K = steps->K, each = 0;
    for (int i = 0; i < count; ++i) each += steps[i].N * (steps[i].K + 16);
    int threads = threads_for(M * each, thread_grain);
    parallel_region(threads < panels ? threads : int(panels), [&](int part, int parts) JM_APART {
        Range mine = part_of(panels, part, parts);
        Scratch scratch;
        float* panel = scratch.at_least((K + L + widths(steps)) * L);
        for (int64_t p = mine.begin; p < mine.end; ++p) {
            int64_t m = p * L, rows = M - m < L ? M - m : L;
            const float* from = a.p + m * a.m;
            if (a.k == 1) pack_transposed(panel, L, from, a.m, rows, K);
            else pack_rows(panel, L, from, a.k, rows, K);
            follow(panel, panel + (K + L) * L, m, rows, steps);
        }
    });
}

void products_rows(int64_t M, MatrixA a, const Step* steps, int count) {
    bool along = a.k == 1;
    for (int i = 0; i < count; ++i) along = along && steps[i].b.k == 1;
    if (M >= L / 2 || !along) return products(M, a, steps, count);
    const float* x = a.p;
    int64_t stride = a.m;
    Scratch scratch;
    float* free = scratch.at_least(M * widths(steps));
    for (; steps->finish; stride = steps->N, x = free, free += M * steps->N, ++steps)
        follow_rows(x, stride, free, M, *steps);
    tiles_or_dots(true, M, steps->N, steps->K, {x, stride, 1}, steps->b, steps->out,
                  threads_for(M * steps->N * (steps->K + 16), thread_grain));
}

}   // namespace jm::detail
