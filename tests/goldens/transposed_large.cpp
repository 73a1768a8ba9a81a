#include <jitmagic/loop.h>

template <class T> using V16 = jm::Vec<T, 16>;

// add_tensor
extern "C" int add_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    const float* x1 = (const float*)args[1];
    float* add_tensor = (float*)args[2];
    jm::parallel_for(8, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i0_strip = begin; i0_strip < end; ++i0_strip) {
            jm::blocks<16, 400>([&](int64_t i1, auto n) JM_BODY {
                for (int64_t i0_tile = i0_strip * 4, i0_tile_end = jm::least_of(32, i0_strip * 4 + 4); i0_tile < i0_tile_end; ++i0_tile) {
                    const int64_t first = i0_tile * 16;
                    const int64_t rows = jm::least_of(-first + 500, 16);
                    V16<float> tile0[16];
                    jm::load_tile(tile0, x1 + i1 * 500 + i0_tile * 16, 500, rows, n);
                    for (int64_t i0 = first, i0_end = first + rows; i0 < i0_end; ++i0) {
                        jm::store(add_tensor + i0 * 400 + i1, jm::load<16>(x0 + i0 * 400 + i1, n) + tile0[-first + i0], n);
                    }
                }
            });
        }
    });
    return 0;
}
