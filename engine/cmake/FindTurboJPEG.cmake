# TurboJPEG::TurboJPEG. Not libjpeg-turbo's own CMake file: Debian's version requires libraries of further packages.
find_path(TurboJPEG_INCLUDE_DIR turbojpeg.h)
find_library(TurboJPEG_LIBRARY turbojpeg)
mark_as_advanced(TurboJPEG_INCLUDE_DIR TurboJPEG_LIBRARY)

# TJFLAG_LIMITSCANS exists since 2.1. The header has no version number.
if(EXISTS "${TurboJPEG_INCLUDE_DIR}/turbojpeg.h")
  file(STRINGS ${TurboJPEG_INCLUDE_DIR}/turbojpeg.h TurboJPEG_HAS_2_1 REGEX "TJFLAG_LIMITSCANS")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TurboJPEG REQUIRED_VARS TurboJPEG_LIBRARY TurboJPEG_INCLUDE_DIR TurboJPEG_HAS_2_1
  REASON_FAILURE_MESSAGE "install libjpeg-turbo's TurboJPEG, 2.1 or newer (Debian: libturbojpeg0-dev)")

if(TurboJPEG_FOUND AND NOT TARGET TurboJPEG::TurboJPEG)
  add_library(TurboJPEG::TurboJPEG UNKNOWN IMPORTED)
  set_target_properties(TurboJPEG::TurboJPEG PROPERTIES IMPORTED_LOCATION ${TurboJPEG_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TurboJPEG_INCLUDE_DIR})
endif()
