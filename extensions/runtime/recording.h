// Recording: a CUDA graph of an executable, with the memory of its inputs and results. Each result is either in the
// recording's memory, which the caller then shares, or copied to new memory by the graph itself (graph_copies.h).
#pragma once

#include "graph_copies.h"
#include "memory.h"
#include "runtime.h"

namespace jitmagic {

// An input that is copied into the recording's memory, and back if the graph writes to it.
struct MovingInput {
  size_t input;
  at::Tensor buffer;
  uint64_t bytes;  // from its first element to its last one
  bool is_written;
};

// A storage that results share.
struct ResultMemory {
  c10::Storage storage;
  size_t own_uses;  // references that the recording itself has
  bool is_copied;
};

struct Result {
  at::Tensor tensor;  // undefined: None
  size_t memory = 0;
  TensorLayout layout;
};

enum class Launch : uint8_t {
  Unknown,  // it was never replayed
  ByTorch,  // it draws random numbers: torch advances the generator
  Direct,
};

struct RecordingData {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  uint64_t exec = 0;  // CUgraphExec; 0 on the CPU
  std::vector<const void*> addresses;  // of the inputs; null: moving
  std::vector<MovingInput> moving;
  std::vector<ResultMemory> memories;
  std::vector<Result> results;
  GraphCopies head, tail;
  Launch launch = Launch::Unknown;
  void* stream = nullptr;  // of the last replay, a CUstream
  bool is_busy = false;  // torch launches it, without the GIL
};

struct Recording {
  PyObject_HEAD
  PyObject* graph;  // has replay()
  PyObject* kept;  // memory that the graph uses
  RecordingData* data;
  uint64_t replays, last_use, copied_bytes;
};

extern PyTypeObject recording_type;

// Returns whether the inputs are where the recording has them.
bool fits(const RecordingData& data, PyObject* const* args);

// Returns whether no result that a replay would overwrite is referenced elsewhere.
bool is_free(const RecordingData& data);

// Starts the graph on the current stream, a CUstream, and returns its results; an undefined tensor is None.
c10::SmallVector<at::Tensor, 4> replay(Recording& self, PyObject* const* args, void* stream);

}  // namespace jitmagic
