#include <dp/dp.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: predict RUN IMAGE...\n"), 2;
  try {
    dp::Predictor predictor(dp::read_trained_model(argv[1]));
    for (int i = 2; i < argc; ++i)
      for (const dp::Score& score : predictor.top(predictor.predict_file(argv[i]), 3))
        std::printf("%s: %5.1f %% %s\n", argv[i], 100 * score.value, predictor.name_of(score.output).c_str());
  } catch (const dp::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), static_cast<int>(error.code());
  }
}
