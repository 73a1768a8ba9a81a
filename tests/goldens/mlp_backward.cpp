#include <jitmagic/loop.h>
#include <jitmagic/gemm.h>

constexpr int L = jm::lanes<float>;
template <class T> using VL = jm::Vec<T, L>;
template <class T> using V16 = jm::Vec<T, 16>;

// mm_default, gt_scalar, mul_tensor
extern "C" int mm_gt_mul_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x2 = (const float*)args[1];
    const float* x1 = (const float*)args[2];
    float* mul_tensor = (float*)args[3];
    jm::gemm<jm::gemm_way(32, 30, {nullptr, 10, 1}, {nullptr, 30, 1})>(
        32, 30, 10, {x0, 10, 1}, {x2, 30, 1}, mul_tensor, 30,
        [&](auto sum, int64_t i0, int64_t i1, int64_t n) JM_BODY {
        return sum * jm::convert<float>(jm::gt(jm::load<L>(x1 + i0 * 30 + i1, n), VL<float>(0.0f)));
    });
    return 0;
}

// mm_default_1
extern "C" int mm_0(void* const* args) {
    const float* x0_view = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    float* mm_default_1 = (float*)args[2];
    jm::gemm<jm::gemm_way(10, 30, {nullptr, 1, 10}, {nullptr, 30, 1})>(
        10,
        30,
        32,
        {x0_view, 1, 10},
        {x1, 30, 1},
        mm_default_1,
        30,
        jm::NoEpilogue{});
    return 0;
}

// sum_dim_int_list
extern "C" int sum_dim_int_list_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    float* sum_dim_int_list = (float*)args[1];
    jm::blocks<16, 10>([&](int64_t i0, auto n) JM_BODY {
        V16<float> acc0(0.0f);
        for (int64_t j0 = 0; j0 < 32; ++j0) {
            acc0 = acc0 + (jm::load<16>(x0 + j0 * 10 + i0, n));
        }
        jm::store(sum_dim_int_list + i0, acc0, n);
    });
    return 0;
}

// mm_default_2
extern "C" int mm_1(void* const* args) {
    const float* mul_tensor_view = (const float*)args[0];
    const float* x3 = (const float*)args[1];
    float* mm_default_2 = (float*)args[2];
    jm::gemm<jm::gemm_way(30, 20, {nullptr, 1, 30}, {nullptr, 20, 1})>(
        30,
        20,
        32,
        {mul_tensor_view, 1, 30},
        {x3, 20, 1},
        mm_default_2,
        20,
        jm::NoEpilogue{});
    return 0;
}

// sum_dim_int_list_1
extern "C" int sum_dim_int_list_1(void* const* args) {
    const float* mul_tensor = (const float*)args[0];
    float* sum_dim_int_list_1 = (float*)args[1];
    jm::blocks<16, 30>([&](int64_t i0, auto n) JM_BODY {
        V16<float> acc0(0.0f);
        for (int64_t j0 = 0; j0 < 32; ++j0) {
            acc0 = acc0 + (jm::load<16>(mul_tensor + j0 * 30 + i0, n));
        }
        jm::store(sum_dim_int_list_1 + i0, acc0, n);
    });
    return 0;
}
