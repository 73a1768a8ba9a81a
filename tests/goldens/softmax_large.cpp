#include <jitmagic/loop.h>

template <class T> using V16 = jm::Vec<T, 16>;
template <class T> using V64 = jm::Vec<T, 64>;

// amax_default, sub_tensor, exp_default, sum_dim_int_list, div_tensor
extern "C" int amax_sub_exp_sum_dim_int_list_div_0(void* const* args) {
    const float* x0 = (const float*)args[0];
    float* div_tensor = (float*)args[1];
    jm::parallel_for(300, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i0 = begin; i0 < end; ++i0) {
            alignas(64) float row0[1000];
            V64<float> acc1(jm::Limits<float>::least);
            jm::blocks<64, 1000>([&](int64_t j0, auto n) JM_BODY {
                const auto v0 = jm::load<64>(x0 + i0 * 1000 + j0, n);
                acc1 = jm::maximum(acc1, jm::only(v0, jm::Limits<float>::least, n));
            });
            const float v1 = jm::hmax(acc1);
            jm::Total<V16<float>> acc2;
            for (int64_t block1 = 0; block1 < 1000; block1 += 512) {
                V16<float> sum0(0.0f);
                jm::blocks<16>(block1, jm::least_of(1000, block1 + 512), [&](int64_t j0, auto n) JM_BODY {
                    const auto v2 = jm::load<16>(x0 + i0 * 1000 + j0, n);
                    const auto v3 = jm::exp(v2 - v1);
                    jm::store(row0 + j0, v3, n);
                    sum0 = sum0 + (jm::only(v3, 0.0f, n));
                });
                acc2.add(sum0);
            }
            const float v4 = jm::hsum(acc2.result());
            jm::blocks<16, 1000>([&](int64_t j0, auto n) JM_BODY {
                jm::store(div_tensor + i0 * 1000 + j0, jm::load<16>(row0 + j0, n) / v4, n);
            });
        }
    });
    return 0;
}
