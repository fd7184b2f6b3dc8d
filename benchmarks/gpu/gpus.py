"""Lists the GPUs with the driver's library only."""
import collections
import ctypes

Gpu = collections.namedtuple("Gpu", "name architecture")  # architecture: "90"

MAJOR, MINOR = 75, 76  # of CUdevice_attribute: the compute capability


def probe(library="libcuda.so.1"):
    """A list of Gpu, or the reason why there is none."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"no NVIDIA driver here ({library} not found); a GPU is needed"
    if (error := driver.cuInit(0)) != 0:
        return f"the NVIDIA driver does not start (cuInit gives error {error}); a GPU is needed"
    count = ctypes.c_int()
    if (error := driver.cuDeviceGetCount(ctypes.byref(count))) != 0:
        return f"the NVIDIA driver does not list its devices (error {error}); a GPU is needed"
    if count.value == 0:
        return "the NVIDIA driver reports no device; a GPU is needed"
    return [gpu(driver, index) for index in range(count.value)]


def gpu(driver, index):
    device, name, number = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    digits = ""
    for attribute in (MAJOR, MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        digits += str(number.value)
    return Gpu(name.value.decode(errors="replace"), digits)


def driver_version(library="libcuda.so.1"):
    """The CUDA version of the driver: 13000 for 13.0; 0 if unknown."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return number.value
