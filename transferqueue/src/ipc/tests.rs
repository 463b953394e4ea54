//! Messages that are no messages: buffers beyond their body, lengths that nothing fills, types that are not taken.

use arrow::{
    array::{ArrayRef, Int32Array, ListArray, StringArray, new_null_array},
    datatypes::{Field, Int32Type, Schema},
};
use arrow_flight::{FlightData, utils::batches_to_flight_data};

use super::*;

fn batch() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "ccc"]));
    let lists = [Some(vec![Some(1)]), Some(vec![]), Some(vec![Some(2), Some(3)])];
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    RecordBatch::try_from_iter([("numbers", numbers), ("texts", texts), ("lists", lists)]).unwrap()
}

fn sent(batch: RecordBatch) -> Vec<FlightData> {
    let schema = batch.schema();
    batches_to_flight_data(&schema, [&batch]).unwrap()
}

fn refusal(batch: RecordBatch) -> String {
    let mut messages = Messages::default();
    let taken = sent(batch).iter().map(|data| messages.take(&data.data_header, &data.data_body)).find_map(Result::err);
    taken.unwrap().to_string()
}

fn file() -> Vec<u8> {
    let mut writer = ipc::writer::FileWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    (0..2).for_each(|_| writer.write(&batch()).unwrap());
    writer.into_inner().unwrap()
}

#[test]
fn what_was_sent_is_read() {
    let mut messages = Messages::default();
    let read: Vec<_> =
        sent(batch()).iter().filter_map(|data| messages.take(&data.data_header, &data.data_body).unwrap()).collect();
    assert_eq!(read, [batch()]);
    assert_eq!(messages.schema().unwrap(), &batch().schema());
}

#[test]
fn types_that_no_column_has_are_refused_by_name() {
    let flags: ArrayRef = Arc::new(arrow::array::BooleanArray::from(vec![true]));
    let said = refusal(RecordBatch::try_from_iter([("flags", flags)]).unwrap());
    assert!(said.contains("`flags` has the type Boolean") && said.contains("uint8"), "{said}");
    let nothing = Field::new("nothing", DataType::Null, true);
    let array = new_null_array(&DataType::Null, 3);
    let said = refusal(RecordBatch::try_new(Arc::new(Schema::new(vec![nothing])), vec![array]).unwrap());
    assert!(said.contains("`nothing` has the type Null"), "{said}");
}

/// Numbers that no body could fill must cost neither a panic nor memory.
#[test]
fn every_flipped_bit_of_a_message_is_read_or_refused() {
    let [schema, rows] = &sent(batch())[..] else { panic!("a schema and a batch") };
    let mut refused = 0;
    for bit in 0..8 * (schema.data_header.len() + rows.data_header.len()) {
        let (mut headers, first) = ([schema.data_header.to_vec(), rows.data_header.to_vec()], schema.data_header.len());
        let (message, at) = if bit / 8 < first { (0, bit / 8) } else { (1, bit / 8 - first) };
        headers[message][at] ^= 1 << (bit % 8);
        let mut messages = Messages::default();
        let taken = [(&headers[0], &schema.data_body), (&headers[1], &rows.data_body)]
            .into_iter()
            .try_for_each(|(header, body)| messages.take(header, body).map(drop));
        refused += u32::from(taken.is_err());
    }
    assert!(refused > 200, "{refused} were refused");
}

#[test]
fn a_file_is_read_in_order_and_each_shortened_one_is_refused() {
    let whole = file();
    let read = |bytes: &[u8]| File::open(bytes, bytes.len() as u64)?.collect::<Result<Vec<_>, _>>();
    assert_eq!(read(&whole).unwrap(), [batch(), batch()]);
    // The footer begins behind the mark that ends the messages.
    let end = whole.windows(8).rposition(|eight| eight == [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]).unwrap() + 8;
    assert_eq!(read(&whole[..end]).unwrap().len(), 2);
    for len in (0..end).step_by(3) {
        assert!(read(&whole[..len]).is_err(), "{len} of {end} bytes");
    }
}

#[test]
fn a_file_that_claims_more_than_it_has_allocates_nothing() {
    let mut bytes = file();
    let first = bytes.windows(4).position(|four| four == CONTINUATION).unwrap();
    bytes[first + 4..first + 8].copy_from_slice(&i32::MAX.to_le_bytes());
    let said = File::open(bytes.as_slice(), bytes.len() as u64).err().unwrap().to_string();
    assert!(said.contains("a header longer than the file"), "{said}");
}

const CONTINUATION: [u8; 4] = [0xff; 4];
