// The beginning of PJRT's interface of C: the size of the table and its version.
#pragma once

#include <cstddef>

struct PJRT_Api_Version {
  size_t struct_size;
  void* extension_start;
  int major_version;
  int minor_version;
};

struct PJRT_Api {
  size_t struct_size;
  void* extension_start;
  PJRT_Api_Version pjrt_api_version;
};
