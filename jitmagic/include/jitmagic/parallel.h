// parallel_for over the threads of torch.
//
// In: an extent, the least work worth a thread, a function of a range. Out: the function has run on
// every range once.
// Invariants: ranges are contiguous, in thread order and depend only on the extent and the number
// of threads, so results are reproducible for a fixed thread count; inside another parallel region
// everything runs on the calling thread. The number of threads is `threads` if positive, else
// OpenMP's. torch.set_num_threads sets the latter, because these symbols resolve to the OpenMP runtime
// that torch has loaded into the global scope. They are called by name, without `#pragma omp`: libgomp,
// libomp and Intel's runtime all have GCC's entry points, while clang's own code would need a second
// runtime, libomp, in a process where torch has loaded libgomp.
#pragma once
#include "dtype.h"

extern "C" {
int omp_get_max_threads(void) noexcept;
int omp_get_num_threads(void) noexcept;
int omp_get_thread_num(void) noexcept;
int omp_in_parallel(void) noexcept;
void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags);
}

namespace jm {

JM_INLINE int max_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

// The number of threads for n units if one thread should get at least `grain` of them.
JM_INLINE int threads_for(int64_t n, int64_t grain, int threads = 0) {
    if (n <= grain || grain <= 0)
        return n > 1 && grain <= 0 ? (threads > 0 ? threads : max_threads()) : 1;
    int64_t most = threads > 0 ? threads : max_threads(), wanted = (n + grain - 1) / grain;
    return int(wanted < most ? wanted : most);
}

// Runs body(thread, count) on `threads` threads; OpenMP may grant fewer, then `count` is lower.
template <class Body> JM_INLINE void parallel_region(int threads, Body body) {
    if (threads <= 1 || omp_in_parallel()) return body(0, 1);
    GOMP_parallel([](void* data) { (*(Body*)data)(omp_get_thread_num(), omp_get_num_threads()); },
                  &body, unsigned(threads), 0);
}
struct Range {
    int64_t begin, end;
};
// Returns the part-th of `parts` nearly equal ranges of [0, n), cut at multiples of `align`.
JM_INLINE Range part_of(int64_t n, int64_t part, int64_t parts, int64_t align = 1) {
    if (parts == 1) return {0, n};
    int64_t units = (n + align - 1) / align, end = units * (part + 1) / parts * align;
    return {units * part / parts * align, end < n ? end : n};
}

// The least number of units per task, for a dynamic number of units or work `each`: all units if the
// whole work is at most `least`, else about `piece` of work.
JM_INLINE int64_t grain(int64_t units, int64_t each, int64_t least, int64_t piece, int64_t threads) {
    if (units * each <= least) return units > 0 ? units : 1;
    int64_t some = piece / (each > 0 ? each : 1), share = (units + threads - 1) / threads;
    int64_t fewer = some < share ? some : share;
    return fewer > 0 ? fewer : 1;
}

// Runs body(begin, end) over [0, n). Ranges begin at multiples of Align, so that only the last one
// has a tail of lanes.
template <int64_t Align = 1, class Body>
JM_INLINE void parallel_for(int64_t n, int64_t grain, Body body, int threads = 0) {
    int count = threads_for(n, grain, threads);
    if (count <= 1) {
        if (n > 0) body(int64_t(0), n);
        return;
    }
    parallel_region(count, [&](int part, int parts) {
        Range r = part_of(n, part, parts, Align);
        if (r.begin < r.end) body(r.begin, r.end);
    });
}

}   // namespace jm
