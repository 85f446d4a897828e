// An extension module named MODULE; one with kernels offers the address of their launcher.
#include <Python.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

__attribute__((weak)) extern int JaxLaunch(void* data, unsigned count, void* stream);

static PyObject* registrations(PyObject* self, PyObject* none) {
  return JaxLaunch ? Py_BuildValue("{s:N}", "launch", PyLong_FromVoidPtr((void*)JaxLaunch)) : PyDict_New();
}

static PyMethodDef methods[] = {{"registrations", registrations, METH_NOARGS, "Launchers by name."}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, TEXT(MODULE), 0, -1, methods};

PyMODINIT_FUNC JOIN(PyInit_, MODULE)(void) { return PyModule_Create(&module); }
