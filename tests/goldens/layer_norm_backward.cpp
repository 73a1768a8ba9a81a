#include <jitmagic/loop.h>

template <class T> using V16 = jm::Vec<T, 16>;
template <class T> using V32 = jm::Vec<T, 32>;

// mul_tensor_1, sub_tensor, mul_tensor, mul_tensor_2, mean_dim_1, mean_dim, mul_tensor_3, sub_tensor_1,
//   sub_tensor_2, mul_tensor_4
extern "C" int mul_sub_mean_dim_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x2 = (const float*)args[1];
    const float* x1 = (const float*)args[2];
    const float* x3 = (const float*)args[3];
    const float* x4 = (const float*)args[4];
    float* mul_tensor_4 = (float*)args[5];
    for (int64_t i0 = 0; i0 < 50; ++i0) {
        V32<float> acc0(0.0f);
        V32<float> acc1(0.0f);
        const auto v1 = x3[i0];
        const auto v2 = x4[i0];
        jm::blocks<32, 96>([&](int64_t j0, auto n) JM_BODY {
            const auto v0 = jm::load<32>(x0 + i0 * 96 + j0, n) * jm::load<32>(x2 + j0, n);
            acc0 = acc0 + (jm::only(v0, 0.0f, n));
            const auto v3 = (jm::load<32>(x1 + i0 * 96 + j0, n) - v1) * v2;
            acc1 = acc1 + (jm::only(v0 * v3, 0.0f, n));
        });
        const float v4 = jm::hsum(acc0);
        const float v5 = jm::hsum(acc1);
        const auto v7 = v4 / 96.0f;
        const auto v9 = v5 / 96.0f;
        jm::blocks<32, 96>([&](int64_t j0, auto n) JM_BODY {
            const auto v6 = jm::load<32>(x0 + i0 * 96 + j0, n) * jm::load<32>(x2 + j0, n);
            const auto v8 = (jm::load<32>(x1 + i0 * 96 + j0, n) - v1) * v2;
            jm::store(mul_tensor_4 + i0 * 96 + j0, ((v6 - v7) - (v8 * v9)) * v2, n);
        });
    }
    return 0;
}

// sub_tensor, mul_tensor, mul_tensor_5, sum_dim_int_list, sum_dim_int_list_1
extern "C" int sub_mul_sum_dim_int_list_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    const float* x3 = (const float*)args[2];
    const float* x4 = (const float*)args[3];
    float* sum_dim_int_list = (float*)args[4];
    float* sum_dim_int_list_1 = (float*)args[5];
    jm::blocks<16, 96>([&](int64_t i0, auto n) JM_BODY {
        jm::Total<V16<float>> acc0;
        jm::Total<V16<float>> acc1;
        for (int64_t block2 = 0; block2 < 50; block2 += 25) {
            V16<float> sum0(0.0f);
            V16<float> sum1(0.0f);
            for (int64_t j0 = block2, j0_end = block2 + 25; j0 < j0_end; ++j0) {
                const auto v0 = jm::load<16>(x0 + j0 * 96 + i0, n);
                sum0 = sum0 + (v0 * ((jm::load<16>(x1 + j0 * 96 + i0, n) - x3[j0]) * x4[j0]));
                sum1 = sum1 + (v0);
            }
            acc0.add(sum0);
            acc1.add(sum1);
        }
        jm::store(sum_dim_int_list + i0, acc0.result(), n);
        jm::store(sum_dim_int_list_1 + i0, acc1.result(), n);
    });
    return 0;
}
