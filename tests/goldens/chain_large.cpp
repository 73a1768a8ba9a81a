#include <jitmagic/loop.h>

// neg_default, mul_tensor_1, exp_default, cos_default, sin_default, mul_tensor, add_tensor, mul_1, erf, add, mul,
//   mul_2, mul_tensor_2, add_tensor_1
extern "C" int neg_mul_exp_cos_sin_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    float* add_tensor_1 = (float*)args[2];
    jm::parallel_for(5625, 461, [&](int64_t begin, int64_t end) {
        jm::whole_blocks<16>(begin * 16, end * 16, [&](int64_t i0_i1, auto n) JM_BODY {
            const auto v0 = jm::load<16>(x0 + i0_i1, n);
            const auto v1 = jm::load<16>(x1 + i0_i1, n);
            const auto v2 = (jm::sin(v0) * jm::cos(v1)) + jm::exp((-v0) * v0);
            jm::store(add_tensor_1 + i0_i1, (((v2 * 0.5f) * (jm::erf(v2 * 0.7071067690849304f) + 1.0f)) * v1) + v0, n);
        });
    });
    return 0;
}
