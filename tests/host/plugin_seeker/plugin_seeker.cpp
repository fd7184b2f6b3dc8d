// A library for probe_test.cpp with the plugin search, to test where it looks for plugins.
#include "kernels/device/plugin_file.h"

extern "C" void seek_plugin(char* text, unsigned size) {
  const std::string reason = dp::kernels::load_plugin_file("libdp_sought.so", "entry", "sought plugin").reason;
  text[reason.copy(text, size - 1)] = '\0';
}
