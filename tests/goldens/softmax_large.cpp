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
                const auto v2 = jm::load<64>(x0 + i0 * 1000 + j0, n);
                acc1 = jm::maximum(acc1, jm::only(v2, jm::Limits<float>::least, n));
            });
            const float v3 = jm::hmax(acc1);
            jm::Total<V16<float>> acc4;
            for (int64_t block5 = 0; block5 < 1000; block5 += 512) {
                V16<float> acc6(0.0f);
                jm::blocks<16>(block5, jm::least_of(1000, block5 + 512), [&](int64_t j0, auto n) JM_BODY {
                    const auto v7 = jm::load<16>(x0 + i0 * 1000 + j0, n);
                    const auto v8 = jm::exp(v7 - v3);
                    jm::store(row0 + j0, v8, n);
                    acc6 = acc6 + (jm::only(v8, 0.0f, n));
                });
                acc4.add(acc6);
            }
            const float v9 = jm::hsum(acc4.result());
            jm::blocks<16, 1000>([&](int64_t j0, auto n) JM_BODY {
                jm::store(div_tensor + i0 * 1000 + j0, jm::load<16>(row0 + j0, n) / v9, n);
            });
        }
    });
    return 0;
}
