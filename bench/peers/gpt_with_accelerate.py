"""A GPT by the loop of Accelerate's documentation. It has no FSDP on CPUs."""

from bench.peers import common, gpt, with_accelerate


def main() -> None:
    task, dataset, clock = gpt.arguments()
    if task == "gpt-fsdp2":
        raise SystemExit("Accelerate shards no model on CPUs")
    accelerator = with_accelerate.made("bf16")
    net = gpt.model()
    made = gpt.optimizer(net)
    data = common.shuffled(dataset, gpt.BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(net, made, data, gpt.schedule(made, clock.steps))

    model.train()
    for tokens in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = gpt.loss(model, tokens)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), gpt.CLIPPED)
        optimizer.step()
        schedule.step()
        if clock.step():
            break
    clock.report()
    accelerator.end_training()


if __name__ == "__main__":
    main()
