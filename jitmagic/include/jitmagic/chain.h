// Consecutive products, such as a stack of linear layers; each thread keeps its own rows throughout.
//
//     X1 = e1(A B1),  X2 = e2(X1 B2),  …,  C = e(Xn B)
//
// In: jm::chain(M, {a, a_m, a_k}, link(N1, K1, {b1, b_k, b_n}, e1), …,
//               last(N, K, {b, b_k, b_n}, c, ldc, e)), strides in elements. A is contiguous along m
// or along k, the B have any strides, C's rows are contiguous. K1 is A's width, K2 is N1, and so on.
// The epilogue of a link receives a vector of finished sums, its lanes one column n of some rows:
//     Vec<float, L> e1(Vec<float, L> sums, int64_t n)
// that of the last product is as in gemm; epilogues live as long as the call. Out: C; intermediate
// results stay in the threads' scratch.
// Invariants: as gemm.h; lanes beyond M hold values that are computed and never stored.
//
// jm::chain_rows, with the same arguments, is for any number of rows: few rows do not fill the lanes,
// so they become dot products along K if A and the B are contiguous along it, layer by layer.
#pragma once
#include "gemm.h"

namespace jm {
namespace detail {

// One product: a link applies its epilogue in place, the last product has an output.
struct Step {
    int64_t N, K;
    MatrixB b;
    const void* epilogue;
    // for `count` columns from n on, each a vector of sums, one after the other
    void (*finish)(const void* epilogue, float* sums, int64_t n, int64_t count);
    Output out;
};

template <class E> void finish_columns(const void* epilogue, float* sums, int64_t n, int64_t count) {
#pragma GCC unroll 1
    for (int64_t i = 0; i < count; ++i)
        (*(const E*)epilogue)(Lanes::load(sums + i * L), n + i).store(sums + i * L);
}

__attribute__((visibility("hidden"))) void products(int64_t M, MatrixA a, const Step* steps, int count);
__attribute__((visibility("hidden"))) void products_rows(int64_t M, MatrixA a, const Step* steps,
                                                         int count);

}   // namespace detail

template <class E> JM_INLINE detail::Step link(int64_t N, int64_t K, MatrixB b, const E& epilogue) {
    return {N, K, b, &epilogue, detail::finish_columns<E>, {}};
}
template <class E>
JM_INLINE detail::Step last(int64_t N, int64_t K, MatrixB b, float* c, int64_t ldc, const E& epilogue) {
    return {N, K, b, nullptr, nullptr, detail::output(c, ldc, epilogue)};
}

template <class... Steps> JM_INLINE void chain(int64_t M, MatrixA a, const Steps&... steps) {
    const detail::Step all[] = {steps...};
    detail::products(M, a, all, sizeof...(steps));
}

template <class... Steps> JM_INLINE void chain_rows(int64_t M, MatrixA a, const Steps&... steps) {
    const detail::Step all[] = {steps...};
    detail::products_rows(M, a, all, sizeof...(steps));
}

}   // namespace jm
