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
            for (int64_t block1 = part * 16384, block1_end = jm::least_of(210700, part * 16384 + 16384); block1 < block1_end; block1 += 256) {
                V64<float> sum0(0.0f);
                jm::blocks<64>(block1, jm::least_of(jm::least_of(210700, part * 16384 + 16384), block1 + 256), [&](int64_t j0_j1, auto n) JM_BODY {
                    const auto v0 = jm::load<64>(x0 + j0_j1, n);
                    sum0 = sum0 + (jm::only(v0 * v0, 0.0f, n));
                    acc1 = jm::maximum(acc1, jm::only(v0, jm::Limits<float>::least, n));
                });
                acc0.add(sum0);
            }
            part2[part] = float(jm::hsum(jm::convert<double>(acc0.result())));
            part3[part] = jm::hmax(acc1);
        }
    });
    jm::WideTotal<float> acc4;
    for (int64_t part = 0; part < 13; ++part) {
        acc4.add(part2[part]);
    }
    float acc5 = jm::Limits<float>::least;
    for (int64_t part = 0; part < 13; ++part) {
        acc5 = jm::maximum(acc5, part3[part]);
    }
    sum_default[0] = acc4.result();
    amax_default[0] = acc5;
    return 0;
}
