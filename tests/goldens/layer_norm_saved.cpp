#include <jitmagic/loop.h>

template <class T> using V32 = jm::Vec<T, 32>;

// mean_dim, sub_tensor, pow_tensor_scalar, mean_dim_1, add_tensor, rsqrt_default, sub_tensor_1, mul_tensor,
//   mul_tensor_1, add_tensor_1
extern "C" int mean_dim_sub_pow_tensor_add_rsqrt_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    const float* x2 = (const float*)args[2];
    float* mean_dim = (float*)args[3];
    float* rsqrt_default = (float*)args[4];
    float* add_tensor_1 = (float*)args[5];
    for (int64_t i0_i1 = 0; i0_i1 < 36; ++i0_i1) {
        V32<float> acc0(0.0f);
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            const auto v0 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            acc0 = acc0 + (jm::only(v0, 0.0f, n));
        });
        const float v1 = jm::hsum(acc0);
        V32<float> acc1(0.0f);
        const auto v3 = v1 / 64.0f;
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            const auto v2 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            const auto v4 = v2 - v3;
            acc1 = acc1 + (jm::only(v4 * v4, 0.0f, n));
        });
        const float v5 = jm::hsum(acc1);
        const auto v8 = jm::rsqrt((v5 / 64.0f) + 9.999999747378752e-06f);
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            const auto v6 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            const auto v7 = v6 - v3;
            jm::store(add_tensor_1 + i0_i1 * 64 + j0, ((v7 * v8) * jm::load<32>(x1 + j0, n)) + jm::load<32>(x2 + j0, n), n);
        });
        mean_dim[i0_i1] = v3;
        rsqrt_default[i0_i1] = v8;
    }
    return 0;
}
