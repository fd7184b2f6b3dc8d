// The module dp._dp.
#include <dp/error.h>

#include "compute_thread.h"
#include "convert.h"

namespace dp_python {
namespace {

// dp/errors.py has the class of each kind.
void raise(const dp::Error& error) {
  const nb::object make = nb::module_::import_("dp.errors").attr("make");
  nb::list others;
  for (const std::string& other : error.others()) others.append(other);
  const nb::object made = make(static_cast<int>(error.code()), error.what(), others);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

}  // namespace
}  // namespace dp_python

NB_MODULE(_dp, m) {
  nb::set_leak_warnings(false);  // objects that a running interpreter leaves behind at its end
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const dp::Error& error) {
          dp_python::raise(error);
        }
      },
      nullptr);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&dp_python::close_all));
  m.attr("__version__") = DP_VERSION;
  dp_python::bind_models(m);
  dp_python::bind_builder(m);
  dp_python::bind_optimizers(m);
  dp_python::bind_data(m);
  dp_python::bind_parallel(m);
  dp_python::bind_trainer(m);
  dp_python::bind_trained_models(m);
  dp_python::bind_predictor(m);
}
