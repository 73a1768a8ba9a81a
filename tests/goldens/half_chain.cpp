#include <jitmagic/loop.h>

// mul_tensor, add_tensor, sigmoid_default, mul_tensor_1
extern "C" int mul_add_sigmoid_0(void* const* args) {
    const jm::bf16* x0 = (const jm::bf16*)args[0];
    const jm::bf16* x1 = (const jm::bf16*)args[1];
    jm::bf16* mul_tensor_1 = (jm::bf16*)args[2];
    jm::blocks<16, 630>([&](int64_t i0_i1, auto n) JM_BODY {
        const auto v0 = jm::convert<float>(jm::load<16>(x0 + i0_i1, n));
        const auto v1 = jm::sigmoid(jm::convert<float>(jm::convert<jm::bf16>(jm::convert<float>(jm::convert<jm::bf16>(v0 * jm::convert<float>(jm::load<16>(x1 + i0_i1, n)))) + 1.0f)));
        jm::store(mul_tensor_1 + i0_i1, jm::convert<jm::bf16>(jm::convert<float>(jm::convert<jm::bf16>(v1)) * v0), n);
    });
    return 0;
}
