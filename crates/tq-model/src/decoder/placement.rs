//! Where weights lie and in which types.

use tch::Device;

use crate::weights::DType;
use crate::{Error, Result, cuda};

/// Where weights lie and in which type they are kept and computed with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// The type parameters are kept in. Training needs f32, or f64 where its rounding is to be told from its method.
    pub storage: DType,
    /// The type of products and activations. Norm statistics, softmax and the value head are f32, or f64 if this is.
    pub compute: DType,
    /// The device.
    pub device: Device,
}

impl Placement {
    /// On the CPU, kept and computed in `dtype`.
    pub fn cpu(dtype: DType) -> Self {
        Self { storage: dtype, compute: dtype, device: Device::Cpu }
    }

    /// On the CPU, kept in f32 and computed in `compute`: what training in bf16 wants.
    pub fn cpu_mixed(compute: DType) -> Self {
        Self { storage: DType::F32, compute, device: Device::Cpu }
    }

    pub(super) fn check(self) -> Result<()> {
        for (role, dtype) in [("storage", self.storage), ("compute", self.compute)] {
            if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F64) {
                return Err(Error::Config(format!(
                    "{role} dtype {dtype} is not for weights; expected f32, bf16 or f64"
                )));
            }
        }
        if let Device::Cuda(index) = self.device {
            let devices = cuda::devices()?;
            if devices <= index as i64 {
                return Err(Error::Config(format!(
                    "device cuda:{index} was asked for, libtorch sees {devices} CUDA devices"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_refused_by_name() {
        let far = Placement { device: Device::Cuda(99), ..Placement::cpu(DType::F32) };
        let said = far.check().expect_err("nobody has a hundred GPUs").to_string();
        assert!(
            said.contains("cuda:99") || said.contains("libtorch_cuda.so") && said.contains("device: cpu"),
            "{said}"
        );
    }
}
