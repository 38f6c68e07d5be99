"""transformers' Trainer on whatever device it finds, as its users write it."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(3, 60, (count, 12), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "labels": (ids[0] > 30).long()}


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    args = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=Rows(32))
    trainer.train()
    print("device:", trainer.model.device)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses:", *losses)
    again = BertForSequenceClassification.from_pretrained(f"{sys.argv[1]}/checkpoint-4")
    print("saved:", again.classifier.weight.device, again.classifier.weight.sum().item())
    print("kept:", trainer.model.classifier.weight.sum().item())


if __name__ == "__main__":
    main()
