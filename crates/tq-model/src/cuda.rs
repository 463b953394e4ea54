//! libtorch's CUDA half, loaded when a device is first asked for: the program links the CPU half alone, so that it builds
//! and runs where there is no GPU.

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::{Error, Result};

const LIBRARY: &str = "libtorch_cuda.so";

/// Number of CUDA devices, once the library is there.
///
/// # Errors
/// [`Error::Config`] when the library cannot be loaded, with what the loader said.
pub(crate) fn devices() -> Result<i64> {
    static LOADED: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    #[expect(
        unsafe_code,
        reason = "loading a library runs its initialisers; this one is made to be loaded into libtorch"
    )]
    let open = || unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| e.to_string());
    match LOADED.get_or_init(open) {
        // libtorch counts once and keeps the number, so nothing may ask it before the library is there.
        Ok(_) => Ok(tch::Cuda::device_count()),
        Err(said) => Err(Error::Config(format!(
            "a CUDA device was asked for, and {LIBRARY} cannot be loaded ({said}); install torch 2.11.0 with CUDA and put \
             its folders torch/lib and nvidia/*/lib into LD_LIBRARY_PATH, or use device: cpu"
        ))),
    }
}
