# WebP::webp. libwebp's own CMake file is not in Debian's package.
find_path(WebP_INCLUDE_DIR webp/decode.h)
find_library(WebP_LIBRARY webp)
mark_as_advanced(WebP_INCLUDE_DIR WebP_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(WebP REQUIRED_VARS WebP_LIBRARY WebP_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libwebp (Debian: libwebp-dev)")

if(WebP_FOUND AND NOT TARGET WebP::webp)
  add_library(WebP::webp UNKNOWN IMPORTED)
  set_target_properties(WebP::webp PROPERTIES IMPORTED_LOCATION ${WebP_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${WebP_INCLUDE_DIR})
endif()
