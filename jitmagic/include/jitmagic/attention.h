// Attention over tiles of queries and keys: the score matrix is never whole, memory is linear in the lengths.
//
// In: jm::attend(shape, query, key, value, blocks, score, masked, out, lse). `score` and `masked` receive a vector of
// scaled products, its lanes the keys j … j + n of one query, and return the scores, minus infinity where nothing
// counts:
//     Vec<float, L> score(Vec<float, L> s, int64_t b, int64_t h, int64_t i, int64_t j, int64_t n)
// Without blocks `masked` is for every tile; with blocks it is for those in the first list, `score` for those in the
// second. Out: for every query the mean of the values, weighted by the exponentials of its scores, and the logarithm of
// their sum if `lse.p` is set; 0 and minus infinity where nothing counts.
// Method: an online softmax (Milakov and Gimelshein 2018). A task owns a tile of queries and visits the keys in order,
// so results do not depend on the number of threads. Tensors of 16 bits are converted tile by tile.
#pragma once
#include "gemm.h"
#include "loop.h"

namespace jm {

struct AttentionShape {
    int64_t batch, heads, key_heads, queries, keys, width, value_width;
    float scale;
};

// Rows of a tensor of batch, head, position and width, with strides in elements.
template <class T> struct Rows {
    T* p;
    int64_t batch, head, row, inner;
    JM_INLINE T* at(int64_t b, int64_t h, int64_t i) const { return p + b * batch + h * head + i * row; }
};

// The blocks of keys that each block of queries visits; strides are 0 where batches or heads share them.
struct BlockList {
    const int32_t *counts, *indices;
    int64_t counts_batch, counts_head, counts_row, batch, head, row, entry;
};
// `queries` and `keys`: positions per block; `keys` is 0 without blocks.
struct AttentionBlocks {
    int64_t queries, keys;
    BlockList partial, full;
};

namespace detail {

constexpr int64_t query_tile = 64, key_tile = 256;

// A tile as floats with contiguous rows: itself, or a copy.
template <class T>
inline MatrixA float_rows(const Rows<const T>& rows, const T* first, int64_t count, int64_t width, float* copy) {
    if constexpr (same<T, float>)
        if (rows.inner == 1) return {first, rows.row, 1};
    for (int64_t i = 0; i < count; ++i)
        for (int64_t d = 0; d < width; d += L) {
            const T* from = first + i * rows.row + d * rows.inner;
            const int64_t some = width - d;
            auto lanes = rows.inner == 1 ? Vec<T, L>::load(from, some) : Vec<T, L>::strided(from, rows.inner, some);
            convert<float>(lanes).store(copy + i * width + d, some);
        }
    return {copy, width, 1};
}

// The state of a tile of queries.
struct Softmax {
    float *scores, *sums, *largest, *total;   // query_tile x key_tile, x value_width, x 1, x 1
    int64_t rows, width;

    JM_INLINE void begin() {
        for (int64_t r = 0; r < rows; ++r) largest[r] = -__builtin_inff(), total[r] = 0;
        for (int64_t k = 0; k < rows * width; ++k) sums[k] = 0;
    }
    // Replaces the scores of a row by their exponentials, and scales what was summed before.
    JM_INLINE void join(int64_t r, int64_t count) {
        float *row = scores + r * key_tile, lowest = -__builtin_inff();
        Lanes most(largest[r]);
        for (int64_t k = 0; k < count; k += L) most = maximum(most, Lanes::load(row + k, count - k, lowest));
        float now = hmax(most), shift = now == lowest ? 0.0f : now, fading = exp(largest[r] - shift);
        Lanes sum(0.0f);
        for (int64_t k = 0; k < count; k += L) {
            Lanes p = exp(Lanes::load(row + k, count - k, lowest) - Lanes(shift));
            p.store(row + k, count - k);
            sum = sum + p;
        }
        total[r] = total[r] * fading + hsum(sum), largest[r] = now;
        float* out = sums + r * width;
        for (int64_t d = 0; d < width; d += L)
            (Lanes::load(out + d, width - d) * Lanes(fading)).store(out + d, width - d);
    }
};

}   // namespace detail

template <class T, class Score, class Masked>
inline void attend(const AttentionShape& s, Rows<const T> query, Rows<const T> key, Rows<const T> value,
                   const AttentionBlocks& blocks, const Score& score, const Masked& masked, Rows<T> out,
                   Rows<float> lse) {
    using namespace detail;
    int64_t each = query_tile;
    while (blocks.keys && blocks.queries % each) --each;   // a tile is in one block
    const int64_t tiles = (s.queries + each - 1) / each, most = s.width > s.value_width ? s.width : s.value_width;
    parallel_for(s.batch * s.heads * tiles, 1, [&](int64_t begin, int64_t end) {
        const int64_t size = query_tile * (key_tile + s.width + s.value_width + 2) + key_tile * most;
        float* scratch = (float*)__builtin_malloc(uint64_t(size) * sizeof(float));
        Softmax state{scratch, scratch + query_tile * key_tile, nullptr, nullptr, 0, s.value_width};
        state.largest = state.sums + query_tile * s.value_width, state.total = state.largest + query_tile;
        float *own = state.total + query_tile, *visited = own + query_tile * s.width;
        for (int64_t task = begin; task < end; ++task) {
            const int64_t h = task / tiles % s.heads, b = task / tiles / s.heads;
            const int64_t from = h / (s.heads / s.key_heads), first = task % tiles * each;
            state.rows = s.queries - first < each ? s.queries - first : each;
            const MatrixA q = float_rows(query, query.at(b, h, first), state.rows, s.width, own);
            state.begin();
            const auto visit = [&](int64_t j0, int64_t stop, const auto& function) {
                for (int64_t j = j0; j < stop; j += key_tile) {
                    const int64_t count = stop - j < key_tile ? stop - j : key_tile;
                    const MatrixA k = float_rows(key, key.at(b, from, j), count, s.width, visited);
                    const auto change = [&](auto sum, int64_t m, int64_t n, int64_t some) JM_BODY {
                        return function(sum * Lanes(s.scale), b, h, first + m, j + n, some);
                    };
                    gemm_rows<Way::Swapped>(state.rows, count, s.width, q, MatrixB{k.p, 1, k.m}, state.scores,
                                            key_tile, change);
                    for (int64_t r = 0; r < state.rows; ++r) state.join(r, count);
                    const MatrixA v = float_rows(value, value.at(b, from, j), count, s.value_width, visited);
                    gemm<Way::Plain>(state.rows, s.value_width, count, MatrixA{state.scores, key_tile, 1},
                                     MatrixB{v.p, v.m, 1}, state.sums, s.value_width,
                                     AddInto{state.sums, s.value_width}, 1);
                }
            };
            const auto visit_list = [&](const BlockList& list, const auto& function) {
                if (!list.counts) return;
                const int64_t row = first / blocks.queries;
                const int32_t* found = list.indices + b * list.batch + h * list.head + row * list.row;
                const int64_t count =
                    list.counts[b * list.counts_batch + h * list.counts_head + row * list.counts_row];
                for (int64_t n = 0; n < count; ++n) {
                    const int64_t j = found[n * list.entry] * blocks.keys, stop = j + blocks.keys;
                    visit(j, stop < s.keys ? stop : s.keys, function);
                }
            };
            if (!blocks.keys) visit(0, s.keys, masked);
            else visit_list(blocks.partial, masked), visit_list(blocks.full, score);
            for (int64_t r = 0; r < state.rows; ++r) {
                const float total = state.total[r], whole = total == 0 ? 1.0f : total;
                T* to = out.at(b, h, first + r);
                for (int64_t d = 0; d < s.value_width; ++d)
                    to[d * out.inner] = convert<T>(state.sums[r * s.value_width + d] / whole);
                if (lse.p)
                    *lse.at(b, h, first + r) = total == 0 ? -__builtin_inff() : state.largest[r] + log(whole);
            }
        }
        __builtin_free(scratch);
    });
}

}   // namespace jm
