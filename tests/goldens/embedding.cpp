#include <jitmagic/loop.h>

// embedding_default, mul_tensor
extern "C" int embedding_mul_0(void* const* args) {
    const int64_t* x1 = (const int64_t*)args[0];
    const float* x0 = (const float*)args[1];
    float* mul_tensor = (float*)args[2];
    int bad = 0;  // set by a run-time index that is out of range
    for (int64_t i0_i1 = 0; i0_i1 < 28; ++i0_i1) {
        const auto v0 = x1[i0_i1];
        const auto v1 = jm::where(jm::lt(v0, int64_t(0)), int64_t(30), v0);
        jm::blocks<16, 24>([&](int64_t i2, auto n) JM_BODY {
            const auto at2 = jm::checked(v1, 30, bad);
            jm::store(mul_tensor + i0_i1 * 24 + i2, jm::load<16>(x0 + at2 * 24 + i2, n) * 2.0f, n);
        });
    }
    return bad;
}
