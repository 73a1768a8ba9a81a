// Chains of matrix products as C functions: what test_chain.py drives.
#include <jitmagic/chain.h>
using namespace jm;

using V = Vec<float, lanes<float>>;

// out = relu(a b1 + bias) b2 + out; sizes: M, K, N1, N2, the strides of a (m, k), of b1 (k, n), of b2
// (k, n) and of out's rows.
extern "C" void chain2(const float* a, const float* b1, const float* bias, const float* b2, float* out,
                       const int64_t* s) {
    chain(s[0], {a, s[4], s[5]},
          link(s[2], s[1], {b1, s[6], s[7]},
               [&](auto sum, int64_t n) { return relu(sum + V(bias[n])); }),
          last(s[3], s[2], {b2, s[8], s[9]}, out, s[10], AddInto{out, s[10]}));
}

// out = ((a b) b) b, all K x K, contiguous.
extern "C" void chain3(const float* a, const float* b, float* out, int64_t M, int64_t K) {
    auto same_value = [](auto sum, int64_t) { return sum; };
    MatrixB right{b, K, 1};
    chain(M, {a, K, 1}, link(K, K, right, same_value), link(K, K, right, same_value),
          last(K, K, right, out, K, NoEpilogue{}));
}
