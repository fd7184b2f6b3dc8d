// The subcommands check-data, convert, estimate-memory, export and selftest.
#pragma once

#include <dp/device.h>
#include <dp/models.h>
#include <dp/trainer.h>
#include <atomic>
#include <vector>

#include "command.h"

namespace dp_train {

// check-data: reads every image and prints why some cannot be read, and the mean and deviation of the training images.
// Returns true if all can be read.
bool check_data(const Command& command);

// convert: writes weights as a safetensors file, and prints what was changed. dp::Error(usage) if the file to write is
// the one to read, or is inside the folder to read.
void convert(const Command& command);

// estimate-memory: the memory of a run on each replica and of its process, and the largest batch that fits. Prints one
// line per replica, for images of the shape that the data set's name implies, and the parts of the process's memory if
// the data set is there. dp::Error(usage) for an unknown data set.
void estimate_memory(const Command& command, const dp::models::Entry& entry, const dp::TrainerOptions& options);

// export: writes a trained network as an ONNX file and prints its name.
void export_network(const Export& given);

// selftest: whether the devices of this machine train correctly. Trains a small network on these devices and checks
// what it computes, stores and reproduces; prints a line for each check. False if one failed. Ends after the current
// step once `stop` is not 0, and returns false.
bool selftest(const std::vector<dp::Device>& devices, const std::atomic<int>& stop);

}  // namespace dp_train
