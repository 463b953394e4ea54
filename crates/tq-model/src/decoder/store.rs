//! Allocating parameters by name.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::weights::ParameterSpec;

/// A model's parameters while it is built: each is zeros, made when it is first asked for.
pub(super) struct Store<'a> {
    shapes: HashMap<&'a str, &'a [i64]>,
    tensors: HashMap<String, Tensor>,
    options: (Kind, Device),
}

impl<'a> Store<'a> {
    pub(super) fn new(specs: &'a [ParameterSpec], options: (Kind, Device)) -> Self {
        let shapes = specs.iter().map(|spec| (spec.name.as_str(), spec.shape.as_slice())).collect();
        Self { shapes, tensors: HashMap::new(), options }
    }

    /// The parameter of that name, if the model has it.
    pub(super) fn optional(&mut self, name: &str) -> Result<Option<Tensor>> {
        let Some(shape) = self.shapes.get(name) else {
            return Ok(None);
        };
        if let Some(tensor) = self.tensors.get(name) {
            return Ok(Some(tensor.shallow_clone()));
        }
        let tensor = Tensor::f_zeros(*shape, self.options)?;
        self.tensors.insert(name.to_owned(), tensor.shallow_clone());
        Ok(Some(tensor))
    }

    /// The parameter of that name, which the model has.
    pub(super) fn get(&mut self, name: &str) -> Result<Tensor> {
        Ok(self.optional(name)?.expect("every name asked for is in the list of parameters"))
    }

    /// One tensor of which the named parameters are consecutive rows, if the model has them. They must not have been asked for before.
    pub(super) fn joined(&mut self, names: &[String]) -> Result<Option<Tensor>> {
        let Some(shapes) = names.iter().map(|name| self.shapes.get(name.as_str()).copied()).collect::<Option<Vec<_>>>()
        else {
            return Ok(None);
        };
        let mut shape = shapes[0].to_vec();
        shape[0] = shapes.iter().map(|shape| shape[0]).sum();
        let whole = Tensor::f_zeros(&shape, self.options)?;
        let mut first = 0;
        for (name, shape) in names.iter().zip(shapes) {
            let before = self.tensors.insert(name.clone(), whole.f_narrow(0, first, shape[0])?);
            debug_assert!(before.is_none(), "{name} was made before it was joined");
            first += shape[0];
        }
        Ok(Some(whole))
    }
}
