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
            const auto v1 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            acc0 = acc0 + (jm::only(v1, 0.0f, n));
        });
        const float v2 = jm::hsum(acc0);
        V32<float> acc3(0.0f);
        const auto v5 = v2 / 64.0f;
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            const auto v4 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            const auto v6 = v4 - v5;
            acc3 = acc3 + (jm::only(v6 * v6, 0.0f, n));
        });
        const float v7 = jm::hsum(acc3);
        const auto v10 = jm::rsqrt((v7 / 64.0f) + (9.999999747378752e-06f));
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            const auto v8 = jm::load<32>(x0 + i0_i1 * 64 + j0, n);
            const auto v9 = v8 - v5;
            jm::store(add_tensor_1 + i0_i1 * 64 + j0, ((v9 * v10) * jm::load<32>(x1 + j0, n)) + jm::load<32>(x2 + j0, n), n);
        });
        mean_dim[i0_i1] = v5;
        rsqrt_default[i0_i1] = v10;
    }
    return 0;
}
