#include "engine/train/option_names.h"

namespace dp {

const char* name_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::automatic: return "auto";
    case Reduce::master: return "master";
    case Reduce::all_reduce: return "allreduce";
    case Reduce::sharded: return "sharded";
  }
  return "unknown";
}

const char* name_of(Comm comm) {
  switch (comm) {
    case Comm::automatic: return "auto";
    case Comm::host: return "host";
    case Comm::p2p: return "p2p";
    case Comm::nccl: return "nccl";
    case Comm::tcp: return "tcp";
    case Comm::mpi: return "mpi";
  }
  return "unknown";
}
const char* name_of(LossAt loss) { return loss == LossAt::gathered ? "gathered" : "local"; }
const char* name_of(Split split) { return split == Split::chunk ? "chunk" : "balanced"; }
const char* name_of(OnNonfinite on_nonfinite) { return on_nonfinite == OnNonfinite::skip ? "skip" : "abort"; }
const char* name_of(Amp amp) {
  switch (amp) {
    case Amp::off: return "float32";
    case Amp::bfloat16: return "bfloat16";
    case Amp::float16: return "float16";
  }
  return "unknown";
}
const char* name_of(Graphs graphs) {
  switch (graphs) {
    case Graphs::automatic: return "auto";
    case Graphs::always: return "always";
    case Graphs::never: return "never";
  }
  return "unknown";
}
const char* name_of(BatchNormMode mode) {
  switch (mode) {
    case BatchNormMode::master: return "master";
    case BatchNormMode::pooled: return "pooled";
    case BatchNormMode::sync: return "sync";
  }
  return "unknown";
}

}  // namespace dp
