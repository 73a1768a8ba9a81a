/* Runs a model with one float input from C: `run_from_c model.jmc ROWS COLUMNS`. The input is filled with ones. */

#include <jitmagic/run.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(void) {
  fprintf(stderr, "%s\n", jitmagic_error());
  return 1;
}

static double sum(const jitmagic_tensor* tensor) {
  double total = 0;
  for (int64_t i = 0; i < tensor->sizes[0]; ++i) {
    for (int64_t j = 0; j < tensor->sizes[1]; ++j) {
      total += ((const float*)tensor->data)[i * tensor->strides[0] + j * tensor->strides[1]];
    }
  }
  return total;
}

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: run_from_c model.jmc ROWS COLUMNS\n");
    return 2;
  }
  const int64_t sizes[] = {atoll(arguments[2]), atoll(arguments[3])};
  float* data = malloc(sizeof(float) * (size_t)(sizes[0] * sizes[1]));
  for (int64_t i = 0; i < sizes[0] * sizes[1]; ++i) data[i] = 1;
  const jitmagic_tensor input = {data, JITMAGIC_FLOAT32, 2, sizes, NULL};

  jitmagic_artifact* model = NULL;
  jitmagic_results* results = NULL;
  jitmagic_tensor first;
  if (jitmagic_load(arguments[1], &model)) return failed();
  if (jitmagic_run(model, &input, 1, &results) || jitmagic_result(results, 0, &first)) return failed();
  printf("%zu result: sum %g\n", jitmagic_count(results), sum(&first));
  jitmagic_free_results(results);
  jitmagic_free(model);
  free(data);
  return 0;
}
