#include <jitmagic/loop.h>

template <class T> using V16 = jm::Vec<T, 16>;
template <class T> using V64 = jm::Vec<T, 64>;

// argmax_default
extern "C" int argmax_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    int64_t* argmax_default = (int64_t*)args[1];
    for (int64_t i0 = 0; i0 < 23; ++i0) {
        jm::BestLanes<float, 16, true> acc0;
        jm::blocks<16, 40>([&](int64_t j0, auto n) JM_BODY {
            acc0.take(jm::load<16>(x0 + i0 * 40 + j0, n), jm::iota<int64_t, 16>(j0), n);
        });
        const int64_t v0 = acc0.best().at;
        argmax_default[i0] = v0;
    }
    return 0;
}

// argmin_default
extern "C" int argmin_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    int64_t* argmin_default = (int64_t*)args[1];
    jm::blocks<16, 40>([&](int64_t i0, auto n) JM_BODY {
        jm::BestLanes<float, 16, false> acc0;
        for (int64_t j0 = 0; j0 < 23; ++j0) {
            acc0.take(jm::load<16>(x0 + j0 * 40 + i0, n), V16<int64_t>(j0), n);
        }
        jm::store(argmin_default + i0, acc0.at, n);
    });
    return 0;
}

// mul_tensor, argmax_default_1
extern "C" int mul_argmax_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    int64_t* argmax_default_1 = (int64_t*)args[1];
    jm::BestLanes<float, 64, true> acc0;
    jm::blocks<64, 920>([&](int64_t j0_j1, auto n) JM_BODY {
        const auto v0 = jm::load<64>(x0 + j0_j1, n);
        acc0.take(v0 * v0, jm::iota<int64_t, 64>(j0_j1), n);
    });
    const int64_t v1 = acc0.best().at;
    argmax_default_1[0] = v1;
    return 0;
}
