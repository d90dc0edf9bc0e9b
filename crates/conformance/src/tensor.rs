//! Tensors on the host.

use bakewell::error::Property;
use bakewell::{Buffer, DType, Device, Error, Result};
use bakewell_reference::Element;
use bakewell_reference::small_float::e4m3_to_f64;
use half::{bf16, f16};

/// A contiguous tensor in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements, outermost first.
    pub shape: Vec<u64>,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

impl HostTensor {
    /// A tensor of floating-point elements.
    pub fn of<T: Element>(shape: &[u64], elements: &[T]) -> HostTensor {
        HostTensor { dtype: T::DTYPE, shape: shape.to_vec(), bytes: T::to_bytes(elements) }
    }

    /// Values rounded once to a floating-point type.
    ///
    /// # Errors
    /// [`Error::Argument`] for a type that holds no fractions.
    pub fn rounded(dtype: DType, shape: &[u64], values: &[f64]) -> Result<HostTensor> {
        fn round<T: Element>(shape: &[u64], values: &[f64]) -> HostTensor {
            HostTensor::of(shape, &values.iter().map(|&value| T::from_f64(value)).collect::<Vec<_>>())
        }
        Ok(match dtype {
            DType::F16 => round::<f16>(shape, values),
            DType::Bf16 => round::<bf16>(shape, values),
            DType::F32 => round::<f32>(shape, values),
            DType::F64 => round::<f64>(shape, values),
            other => return Err(Error::argument("dtype", Property::DType, "f16, bf16, f32 or f64", other)),
        })
    }

    /// A tensor of signed 32-bit integers.
    pub fn of_i32(shape: &[u64], elements: &[i32]) -> HostTensor {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        HostTensor { dtype: DType::I32, shape: shape.to_vec(), bytes }
    }

    /// The elements as `f64`, exactly.
    ///
    /// # Errors
    /// [`Error::Argument`] for types whose elements are not numbers of their own.
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        fn widen<T: Element>(bytes: &[u8]) -> Vec<f64> {
            T::from_bytes(bytes).into_iter().map(T::to_f64).collect()
        }
        Ok(match self.dtype {
            DType::F16 => widen::<f16>(&self.bytes),
            DType::Bf16 => widen::<bf16>(&self.bytes),
            DType::F32 => widen::<f32>(&self.bytes),
            DType::F64 => widen::<f64>(&self.bytes),
            DType::E4m3 => e4m3_values(&self.bytes),
            DType::I32 => self.to_i32()?.into_iter().map(f64::from).collect(),
            other => return Err(Error::argument("dtype", Property::DType, "a floating-point type or i32", other)),
        })
    }

    /// The elements of an `i32` tensor.
    ///
    /// # Errors
    /// [`Error::Argument`] for another type.
    pub fn to_i32(&self) -> Result<Vec<i32>> {
        if self.dtype != DType::I32 {
            return Err(Error::argument("dtype", Property::DType, DType::I32, self.dtype));
        }
        Ok(self.bytes.as_chunks().0.iter().map(|&element| i32::from_le_bytes(element)).collect())
    }

    /// The tensor in memory of a device.
    ///
    /// # Errors
    /// The device's.
    pub fn upload(&self, device: &Device) -> Result<Buffer> {
        device.upload(&self.bytes)
    }

    /// A tensor out of the start of a buffer, once earlier work has finished.
    ///
    /// # Errors
    /// The device's, or [`Error::Argument`] when the buffer is smaller than the tensor.
    pub fn download(buffer: &Buffer, dtype: DType, shape: &[u64]) -> Result<HostTensor> {
        let view = buffer.view(dtype, shape)?;
        let mut bytes = buffer.read()?;
        bytes.truncate(view.extent_bytes()? as usize);
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }
}

/// E4M3 bytes as numbers.
pub fn e4m3_values(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().map(|&byte| e4m3_to_f64(byte)).collect()
}
