/* Runs programs that jitmagic has compiled, from C. See run.hpp.
 *
 * Functions that return an int return 0, or -1 after a failure; jitmagic_error() then has its sentence, per thread.
 */
#ifndef JITMAGIC_RUN_H
#define JITMAGIC_RUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define JITMAGIC_C_PUBLIC __attribute__((visibility("default")))
#else
#define JITMAGIC_C_PUBLIC
#endif

/* The numbers of torch's ScalarType. */
enum jitmagic_dtype {
  JITMAGIC_UINT8 = 0,
  JITMAGIC_INT8 = 1,
  JITMAGIC_INT16 = 2,
  JITMAGIC_INT32 = 3,
  JITMAGIC_INT64 = 4,
  JITMAGIC_FLOAT16 = 5,
  JITMAGIC_FLOAT32 = 6,
  JITMAGIC_FLOAT64 = 7,
  JITMAGIC_BOOL = 11,
  JITMAGIC_BFLOAT16 = 15
};

/* A strided tensor in the memory of its owner. `strides` count elements; NULL: contiguous, row by row. */
typedef struct {
  void* data;
  int32_t dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
} jitmagic_tensor;

typedef struct jitmagic_artifact jitmagic_artifact;
typedef struct jitmagic_results jitmagic_results;

JITMAGIC_C_PUBLIC int jitmagic_load(const char* path, jitmagic_artifact** loaded);
JITMAGIC_C_PUBLIC void jitmagic_free(jitmagic_artifact* artifact);

/* Threads may share an artifact. The inputs' memory must stay valid until the results are freed: a result may be a
 * view of an input. */
JITMAGIC_C_PUBLIC int jitmagic_run(
    const jitmagic_artifact* artifact, const jitmagic_tensor* inputs, size_t count, jitmagic_results** results);
JITMAGIC_C_PUBLIC size_t jitmagic_count(const jitmagic_results* results);
/* The tensor's memory, sizes and strides are valid until the results are freed. */
JITMAGIC_C_PUBLIC int jitmagic_result(const jitmagic_results* results, size_t index, jitmagic_tensor* tensor);
JITMAGIC_C_PUBLIC void jitmagic_free_results(jitmagic_results* results);

/* The sentence of this thread's last failure; valid until the next one. */
JITMAGIC_C_PUBLIC const char* jitmagic_error(void);

#ifdef __cplusplus
}
#endif

#endif
