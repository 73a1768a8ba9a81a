#include <jitmagic/loop.h>
#include <jitmagic/gemm.h>

constexpr int L = jm::lanes<float>;
template <class T> using VL = jm::Vec<T, L>;

// addmm_default, relu_default, gt_scalar
extern "C" int addmm_relu_gt_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1_view = (const float*)args[1];
    const float* x2 = (const float*)args[2];
    float* relu_default = (float*)args[3];
    bool* gt_scalar = (bool*)args[4];
    jm::gemm<jm::gemm_way(32, 30, {nullptr, 20, 1}, {nullptr, 1, 20})>(
        32, 30, 20, {x0, 20, 1}, {x1_view, 1, 20}, relu_default, 30,
        [&](auto sum, int64_t i0, int64_t i1, int64_t n) JM_BODY {
        const auto v0 = jm::relu(sum + jm::load<L>(x2 + i1, n));
        jm::store(gt_scalar + i0 * 30 + i1, jm::gt(v0, VL<float>(0.0f)), n);
        return v0;
    });
    return 0;
}

// addmm_default_1
extern "C" int addmm_0(void* const* args) {
    const float* relu_default = (const float*)args[0];
    const float* x3_view = (const float*)args[1];
    const float* x4 = (const float*)args[2];
    float* addmm_default_1 = (float*)args[3];
    jm::gemm<jm::gemm_way(32, 10, {nullptr, 30, 1}, {nullptr, 1, 30})>(
        32, 10, 30, {relu_default, 30, 1}, {x3_view, 1, 30}, addmm_default_1, 10,
        [&](auto sum, int64_t i0, int64_t i1, int64_t n) JM_BODY {
        return sum + jm::load<L>(x4 + i1, n);
    });
    return 0;
}
