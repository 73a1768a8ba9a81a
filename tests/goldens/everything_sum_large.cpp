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
            jm::WideTotal<V64<float>> acc0;
            V64<float> acc1(jm::Limits<float>::least);
            for (int64_t block4 = part * 16384, block4_end = jm::least_of(210700, part * 16384 + 16384); block4 < block4_end; block4 += 256) {
                V64<float> acc5(0.0f);
                jm::blocks<64>(block4, jm::least_of(block4_end, block4 + 256), [&](int64_t j0_j1, auto n) JM_BODY {
                    const auto v6 = jm::load<64>(x0 + j0_j1, n);
                    acc5 = acc5 + (jm::only(v6 * v6, 0.0f, n));
                    acc1 = jm::maximum(acc1, jm::only(v6, jm::Limits<float>::least, n));
                });
                acc0.add(acc5);
            }
            part2[part] = float(jm::hsum(jm::convert<double>(acc0.result())));
            part3[part] = jm::hmax(acc1);
        }
    });
    jm::WideTotal<float> acc7;
    for (int64_t part = 0; part < 13; ++part) acc7.add(part2[part]);
    float acc8 = jm::Limits<float>::least;
    for (int64_t part = 0; part < 13; ++part) acc8 = jm::maximum(acc8, part3[part]);
    sum_default[0] = acc7.result();
    amax_default[0] = acc8;
    return 0;
}
