// Calls functions of this program for another process, which runs it under an emulator.
//
// In: requests on standard input, all numbers int64_t: the length of a name, the name, the number of arguments, and for
// each of them its size in bytes, or -1, and a number. Without a size the number is the argument; otherwise so many bytes
// follow, and the argument points to them, at that offset. A size of -2 - i means the memory of the i-th argument. A name
// that begins with @ is one of a generated kernel, which takes an array of its arguments. Out: the result, and the bytes
// of all arguments with a size.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

namespace {

constexpr int most = 64;       // arguments of a kernel
constexpr int registers = 8;  // of integer arguments, which hold all those of another function

void take(void* to, int64_t size) {
    if (fread(to, 1, size, stdin) != size_t(size)) exit(0);
}
int64_t number() {
    int64_t out;
    take(&out, sizeof out);
    return out;
}

}  // namespace

int main() {
    for (;;) {
        char name[256] = {};
        int64_t length = number();
        if (length >= int64_t(sizeof name)) return 1;
        take(name, length);
        int64_t count = number(), x[most] = {}, sizes[most];
        char* buffers[most];
        bool kernel = name[0] == '@';
        if (count > (kernel ? most : registers)) return 1;
        for (int i = 0; i < count; ++i) {
            sizes[i] = number();
            x[i] = number();
            if (sizes[i] < -1) x[i] += (int64_t)buffers[-2 - sizes[i]];
            if (sizes[i] < 0) continue;
            // Aligned as torch's memory is; functions may not touch anything beyond the size.
            buffers[i] = (char*)aligned_alloc(64, (sizes[i] + 64) / 64 * 64);
            take(buffers[i], sizes[i]);
            x[i] += (int64_t)buffers[i];
        }
        void* found = dlsym(RTLD_DEFAULT, name + kernel);
        if (!found) return 1;
        using Function = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
        int64_t result = kernel ? ((int (*)(void* const*))found)((void* const*)x)
                                : ((Function)found)(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
        fwrite(&result, sizeof result, 1, stdout);
        for (int i = 0; i < count; ++i) {
            if (sizes[i] < 0) continue;
            fwrite(buffers[i], 1, sizes[i], stdout);
            free(buffers[i]);
        }
        fflush(stdout);
    }
}
