// Calls an XLA FFI handler as XLA's runtime does: a call frame, and the part of XLA's API that handlers use. Tests only.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

#define PUBLIC extern "C" __attribute__((visibility("default")))

struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};

struct XLA_FFI_ExecutionContext {
  void* stream;
};

// Read by ctypes; see calls.py.
struct DriveBuffer {
  int dtype;
  std::int64_t rank;
  std::int64_t* dims;
  void* data;
};

struct DriveAttribute {
  const char* name;
  int dtype;  // of a scalar; 0 for a string
  union {
    std::int32_t s32;
    float f32;
    bool pred;
  } value;
  const char* text;
};

namespace {

XLA_FFI_Error* create(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message, args->errc}; }
void message(XLA_FFI_Error_GetMessage_Args* args) { args->message = args->error->message.c_str(); }
void destroy(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}

XLA_FFI_Api api() {
  XLA_FFI_Api made{};
  made.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  made.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  made.XLA_FFI_Error_Create = create;
  made.XLA_FFI_Error_GetMessage = message;
  made.XLA_FFI_Error_Destroy = destroy;
  made.XLA_FFI_Stream_Get = stream;
  return made;
}

struct Buffers {
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> pointers;

  Buffers(const DriveBuffer* from, int count) {
    for (int i = 0; i < count; ++i) {
      buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, static_cast<XLA_FFI_DataType>(from[i].dtype),
                         from[i].data, from[i].rank, from[i].dims});
    }
    for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  }
};

int finish(XLA_FFI_Error* error, char* text, std::size_t size) {
  if (error == nullptr) return 0;
  std::strncpy(text, error->message.c_str(), size - 1);
  text[size - 1] = 0;
  const int code = error->code;
  delete error;
  return code;
}

}  // namespace

// Returns the error's code, 0 for none. Attributes are sorted by name, as XLA sorts them.
PUBLIC int drive(XLA_FFI_Handler* handler, void* on_stream, const DriveBuffer* args, int arg_count,
                 const DriveBuffer* rets, int ret_count, const DriveAttribute* attributes, int attribute_count,
                 char* text, std::size_t size) {
  const XLA_FFI_Api table = api();
  XLA_FFI_ExecutionContext context{on_stream};
  Buffers arguments(args, arg_count), results(rets, ret_count);
  std::vector<XLA_FFI_ArgType> arg_types(arg_count, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(ret_count, XLA_FFI_RetType_BUFFER);
  std::vector<XLA_FFI_ByteSpan> names(attribute_count), texts(attribute_count);
  std::vector<XLA_FFI_Scalar> scalars(attribute_count);
  std::vector<XLA_FFI_ByteSpan*> name_pointers(attribute_count);
  std::vector<XLA_FFI_AttrType> attribute_types(attribute_count);
  std::vector<void*> values(attribute_count);
  for (int i = 0; i < attribute_count; ++i) {
    const DriveAttribute& from = attributes[i];
    names[i] = {from.name, std::strlen(from.name)};
    name_pointers[i] = &names[i];
    if (from.dtype == 0) {
      texts[i] = {from.text, std::strlen(from.text)};
      attribute_types[i] = XLA_FFI_AttrType_STRING;
      values[i] = &texts[i];
    } else {
      scalars[i] = {static_cast<XLA_FFI_DataType>(from.dtype), const_cast<void*>(static_cast<const void*>(&from.value))};
      attribute_types[i] = XLA_FFI_AttrType_SCALAR;
      values[i] = &scalars[i];
    }
  }
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &table;
  frame.ctx = &context;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, arg_count, arg_types.data(), arguments.pointers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, ret_count, ret_types.data(), results.pointers.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, attribute_count, attribute_types.data(), name_pointers.data(),
                 values.data()};
  return finish(handler(&frame), text, size);
}

// The API version and the traits that the handler declares.
PUBLIC int drive_metadata(XLA_FFI_Handler* handler, int* major, int* minor, unsigned* traits, char* text,
                          std::size_t size) {
  const XLA_FFI_Api table = api();
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &table;
  const int code = finish(handler(&frame), text, size);
  *major = metadata.api_version.major_version;
  *minor = metadata.api_version.minor_version;
  *traits = metadata.traits;
  return code;
}
