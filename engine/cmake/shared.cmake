# The shared library of packages (docs/decisions/0076-shared-library-and-packages.md): only what engine/include/dp
# declares is visible.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# The sources of shared libraries find these headers before those that they include.
file(GLOB dp_public_headers RELATIVE ${PROJECT_SOURCE_DIR}/engine/include CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/engine/include/dp/*.h)
file(RELATIVE_PATH dp_public ${PROJECT_BINARY_DIR}/visible/dp ${PROJECT_SOURCE_DIR}/engine/include)
foreach(header IN LISTS dp_public_headers)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/visible/${header} CONTENT [[
#pragma once
#pragma GCC visibility push(default)
#include "@dp_public@/@header@"
#pragma GCC visibility pop
]] @ONLY)
endforeach()

# Where libdp searches for plugins, relative to its folder.
set(dp_plugins lib/dp)
cmake_path(RELATIVE_PATH dp_plugins BASE_DIRECTORY ${CMAKE_INSTALL_LIBDIR})

function(dp_make_shared target)
  # A program needs the minor version it was compiled with, as dpConfigVersion.cmake says.
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/${dp_plugins}")
  target_include_directories(${target} BEFORE PRIVATE ${PROJECT_BINARY_DIR}/visible)
  # Hides the std:: templates that dp instantiates.
  target_link_options(${target} PRIVATE LINKER:--version-script,${PROJECT_SOURCE_DIR}/engine/cmake/visible.map)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/engine/cmake/visible.map)
endfunction()
