#include <jitmagic/loop.h>

// add_tensor
extern "C" int add_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    float* add_tensor = (float*)args[2];
    jm::parallel_for(32, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i0_tile = begin; i0_tile < end; ++i0_tile) {
            jm::blocks<16>(0, 400, [&](int64_t i1, auto n) JM_BODY {
                for (int64_t i0 = i0_tile * 16; i0 < jm::least_of(500, i0_tile * 16 + 16); ++i0) {
                    jm::store(add_tensor + i0 * 400 + i1, jm::load<16>(x0 + i0 * 400 + i1, n) + jm::load_strided<16>(x1 + i1 * 500 + i0, 500, n), n);
                }
            });
        }
    });
    return 0;
}
