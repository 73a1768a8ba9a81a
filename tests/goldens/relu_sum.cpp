#include <jitmagic/loop.h>

template <class T> using V32 = jm::Vec<T, 32>;

// mul_tensor, add_tensor, relu_default, sum_dim_int_list
extern "C" int mul_add_relu_sum_dim_int_list_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    float* sum_dim_int_list = (float*)args[2];
    for (int64_t i0 = 0; i0 < 8; ++i0) {
        V32<float> acc0(0.0f);
        jm::blocks<32, 64>([&](int64_t j0, auto n) JM_BODY {
            acc0 = acc0 + (jm::only(jm::relu((jm::load<32>(x0 + i0 * 64 + j0, n) * jm::load<32>(x1 + i0 * 64 + j0, n)) + 2.0f), 0.0f, n));
        });
        const float v0 = jm::hsum(acc0);
        sum_dim_int_list[i0] = v0;
    }
    return 0;
}
