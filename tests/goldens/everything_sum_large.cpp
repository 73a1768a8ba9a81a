#include <jitmagic/loop.h>

template <class T> using V64 = jm::Vec<T, 64>;

// mul_tensor, sum_default, amax_default
extern "C" int mul_sum_amax_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    float* sum_default = (float*)args[1];
    float* amax_default = (float*)args[2];
    static thread_local float part2_memory[13];
    auto* const part2 = part2_memory;
    static thread_local float part3_memory[13];
    auto* const part3 = part3_memory;
    jm::parallel_for(13, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
            V64<float> acc0(0.0f);
            V64<float> acc1(jm::Limits<float>::least);
            jm::blocks<64>(part * 16384, jm::least_of(210700, part * 16384 + 16384), [&](int64_t j0_j1, auto n) JM_BODY {
                const auto v4 = jm::load<64>(x0 + j0_j1, n);
                acc0 = acc0 + (jm::only(v4 * v4, 0.0f, n));
                acc1 = jm::maximum(acc1, jm::only(v4, jm::Limits<float>::least, n));
            });
            part2[part] = jm::hsum(acc0);
            part3[part] = jm::hmax(acc1);
        }
    });
    float acc5 = 0.0f;
    for (int64_t part = 0; part < 13; ++part) acc5 = acc5 + (part2[part]);
    float acc6 = jm::Limits<float>::least;
    for (int64_t part = 0; part < 13; ++part) acc6 = jm::maximum(acc6, part3[part]);
    sum_default[0] = acc5;
    amax_default[0] = acc6;
    return 0;
}
