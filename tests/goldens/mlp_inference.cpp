#include <jitmagic/loop.h>
#include <jitmagic/chain.h>

constexpr int L = jm::lanes<float>;
template <class T> using VL = jm::Vec<T, L>;

// addmm_default, relu_default, addmm_default_1, relu_default_1, addmm_default_2
extern "C" int addmm_relu_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1_view = (const float*)args[1];
    const float* x2 = (const float*)args[2];
    const float* x3_view = (const float*)args[3];
    const float* x4 = (const float*)args[4];
    const float* x5_view = (const float*)args[5];
    const float* x6 = (const float*)args[6];
    float* addmm_default_2 = (float*)args[7];
    const auto after0 = [&](auto sum, int64_t j1) JM_BODY {
        const auto v0 = jm::relu(sum + x2[j1]);
        return v0;
    };
    const auto after1 = [&](auto sum, int64_t j2) JM_BODY {
        const auto v1 = jm::relu(sum + x4[j2]);
        return v1;
    };
    const auto finish = [&](auto sum, int64_t i0, int64_t i1, int64_t n) JM_BODY {
        return sum + jm::load<L>(x6 + i1, n);
    };
    jm::chain(
        32,
        {x0, 20, 1},
        jm::link(30, 20, {x1_view, 1, 20}, after0),
        jm::link(30, 30, {x3_view, 1, 30}, after1),
        jm::last(10, 30, {x5_view, 1, 30}, addmm_default_2, 10, finish));
    return 0;
}
